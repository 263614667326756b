"""Draws the pictures of docs/architecture.md: the packages in their layers, and the way of a network to native steps.

The layers are those that the tests hold the imports to.
"""

from html import escape

from tests.test_imports import LEVELS

PAGE = "architecture.md"
LAYERS = LEVELS[:-1]  # the last one is the package as a whole
INK, LINE, BOX, STRONG = "#1f2933", "#7b8794", "#e6f4f1", "#00796b"
FONT = "font-family='system-ui, sans-serif'"
STAGES = (
    ("nn.Module", "yours", ("Conv2d, DGC,", "BatchNorm2d, ...")),
    ("trace", "torch.fx", ("one node", "a call")),
    ("translate", "rules", ("a graph", "of steps")),
    ("fuse", "fewer steps", ("norms, sums,", "activations go in")),
    ("pack", "this CPU", ("weights in order,", "one arena")),
    ("run", "C++", ("one call, a crew", "of threads")),
)
DYNAMIC = ("mean of each channel", "generator: saliencies", "gate: which, how much", "convolve those kept")


def text(x: float, y: float, words: str, size: int = 14, color: str = INK, weight: str = "normal") -> str:
    style = f"font-size='{size}' fill='{color}' font-weight='{weight}' text-anchor='middle' {FONT}"
    return f"<text x='{x}' y='{y}' {style}>{escape(words)}</text>"


def box(x: float, y: float, width: float, height: float, fill: str = BOX) -> str:
    return f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{fill}' stroke='{STRONG}'/>"


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{LINE}' stroke-width='2' marker-end='url(#tip)'/>"


def svg(width: int, height: int, parts: list[str], title: str) -> bytes:
    tip = (
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0 0L8 4L0 8z' fill='{LINE}'/></marker></defs>"
    )
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img'><title>{title}</title>"
    ground = f"<rect width='{width}' height='{height}' fill='#ffffff'/>"
    return "\n".join([head, tip, ground, *parts, "</svg>", ""]).encode()


def house() -> bytes:
    """A row for each layer, the highest one at the top; arrows are imports."""
    width, step, parts = 640, 52, []
    for row, names in enumerate(reversed(LAYERS)):
        y, room = 10 + row * step, 600 / len(names)
        for number, name in enumerate(names):
            parts += [box(20 + number * room + 4, y, room - 8, 32), text(20 + (number + 0.5) * room, y + 21, name)]
        if row:
            parts.append(arrow(width / 2, y - step + 33, width / 2, y - 2))
    return svg(width, 10 + len(LAYERS) * step, parts, "The packages of dgconv in layers")


def compile_stages() -> bytes:
    width, parts = 760, []
    for number, (title, by, lines) in enumerate(STAGES):
        x = 8 + number * 125
        parts += [box(x, 16, 110, 92), text(x + 55, 38, title, 15, STRONG, "bold"), text(x + 55, 56, by, 12, LINE)]
        parts += [text(x + 55, 78 + 16 * line, words, 11) for line, words in enumerate(lines)]
        if number:
            parts.append(arrow(x - 14, 62, x - 2, 62))
    parts.append(text(width / 2, 146, "a dynamic convolution among the steps, for each image and head", 13))
    for number, words in enumerate(DYNAMIC):
        x = 8 + number * 188
        parts += [box(x, 162, 172, 36, "#fff7e6"), text(x + 86, 185, words, 13)]
        if number:
            parts.append(arrow(x - 15, 180, x - 2, 180))
    return svg(width, 212, parts, "From a module to native steps")


def draw_architecture() -> dict[str, bytes]:
    return {"architecture.svg": house(), "compile.svg": compile_stages()}
