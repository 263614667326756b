"""Draws the pictures of docs/architecture.md: the packages in their layers, and the way of a network to native steps.

The layers are those that the tests hold the imports to.
"""

from html import escape

from tests.test_imports import LEVELS

PAGE = "architecture.md"
LAYERS = LEVELS[:-1]  # the last one is the package as a whole
WIDTH = 400  # as a phone shows it; wider screens do not enlarge it much
INK, FAINT, LINE, BOX, STRONG = "#1f2933", "#52606d", "#7b8794", "#e6f4f1", "#00796b"
FONT = "font-family='system-ui, sans-serif'"
STAGES = (
    ("nn.Module", "yours", ("Conv2d, DGC,", "BatchNorm2d")),
    ("trace", "torch.fx", ("one node", "a call")),
    ("translate", "rules", ("a graph", "of steps")),
    ("fuse", "fewer steps", ("norms and sums", "go in")),
    ("pack", "this CPU", ("weights in order", "one arena")),
    ("run", "C++", ("one call, a crew", "of threads")),
)
DYNAMIC = ("1. mean of each channel", "2. generator: saliencies", "3. gate: which, how much", "4. convolve those kept")


def text(x: float, y: float, words: str, size: int = 14, color: str = INK, weight: str = "normal") -> str:
    style = f"font-size='{size}' fill='{color}' font-weight='{weight}' text-anchor='middle' {FONT}"
    return f"<text x='{x}' y='{y}' {style}>{escape(words)}</text>"


def box(x: float, y: float, width: float, height: float, fill: str = BOX) -> str:
    return f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{fill}' stroke='{STRONG}'/>"


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{LINE}' stroke-width='2' marker-end='url(#tip)'/>"


def svg(height: int, parts: list[str], title: str) -> bytes:
    tip = (
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0 0L8 4L0 8z' fill='{LINE}'/></marker></defs>"
    )
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img'><title>{title}</title>"
    ground = f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>"
    return "\n".join([head, tip, ground, *parts, "</svg>", ""]).encode()


def house() -> bytes:
    """A row for each layer, the highest one at the top; arrows are imports."""
    step, parts = 46, []
    for row, names in enumerate(reversed(LAYERS)):
        y, room = 8 + row * step, (WIDTH - 8) / len(names)
        for number, name in enumerate(names):
            parts += [box(8 + number * room, y, room - 8, 30), text(4 + (number + 0.5) * room, y + 20, name)]
        if row:
            parts.append(arrow(WIDTH / 2, y - step + 31, WIDTH / 2, y - 1))
    return svg(8 + len(LAYERS) * step, parts, "The packages of dgconv in layers")


def compile_stages() -> bytes:
    """Three stages in a row; below them, two in a row, what a dynamic convolution is among the steps."""
    parts, room = [], (WIDTH - 8) / 3
    for number, (title, by, lines) in enumerate(STAGES):
        x, y = 8 + number % 3 * room, 10 + number // 3 * 112
        middle = x + room / 2 - 8
        parts += [box(x, y, room - 16, 88), text(middle, y + 20, title, 14, STRONG, "bold")]
        parts += [text(middle, y + 37, by, 11, FAINT)]
        parts += [text(middle, y + 57 + 15 * line, words, 12) for line, words in enumerate(lines)]
        if number % 3:
            parts.append(arrow(x - 15, y + 44, x - 1, y + 44))
    parts += [arrow(WIDTH - room / 2, 99, room / 2, 121)]
    parts.append(text(WIDTH / 2, 240, "among the steps, a dynamic convolution:", 13))
    for number, words in enumerate(DYNAMIC):
        x, y = 8 + number % 2 * (WIDTH - 8) / 2, 252 + number // 2 * 52
        parts += [box(x, y, WIDTH / 2 - 20, 32, "#fff7e6"), text(x + WIDTH / 4 - 10, y + 21, words, 12)]
        if number % 2:
            parts.append(arrow(x - 15, y + 16, x - 1, y + 16))
    parts.append(arrow(WIDTH * 3 / 4, 285, WIDTH / 4, 303))
    return svg(346, parts, "From a module to native steps")


def draw_architecture() -> dict[str, bytes]:
    return {"architecture.svg": house(), "compile.svg": compile_stages()}
