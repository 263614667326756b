"""The plan of the house: each package imports only from those to its left, and no two modules need each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src"
LEVELS = (
    ("errors", "version"),
    ("values", "environment", "text"),
    ("files",),
    ("runs", "data", "ops"),
    ("layers",),
    ("cost",),
    ("pruning",),
    ("models",),
    ("train", "deploy"),
    ("analysis",),
    ("bench", "report", "explore"),
    ("compare", "tuning"),
    ("cli",),
    ("", "__main__"),  # the package itself
)
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}


def modules(root: Path) -> dict[str, Path]:
    """By dotted name."""
    paths = [path for path in root.rglob("*.py") if path.is_relative_to(root / "dgconv")]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports(name: str, path: Path, known: set[str]) -> set[str]:
    """The modules of the package that one names anywhere: in functions and for type checkers, too."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                found.add(f"{target}.{alias.name}" if f"{target}.{alias.name}" in known else target)
    return {target for target in found if target in known and target != name}


def graph(root: Path = ROOT) -> dict[str, set[str]]:
    found = modules(root)
    return {name: imports(name, path, set(found)) for name, path in found.items()}


def part_of(module: str) -> str:
    """The package, or the module at the root, that it belongs to."""
    return module.split(".")[1] if "." in module else ""


def edges_upwards(edges: dict[str, set[str]]) -> list[str]:
    return [
        f"{name} imports {target}"
        for name, targets in edges.items()
        for target in targets
        if part_of(name) != part_of(target) and LEVEL_OF[part_of(target)] >= LEVEL_OF[part_of(name)]
    ]


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that can be reached from each other (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in edges[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in edges:
        if node not in index:
            visit(node)
    return found


def between_packages(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {part_of(name): set() for name in edges}
    for name, targets in edges.items():
        found[part_of(name)] |= {part_of(target) for target in targets} - {part_of(name)}
    return found


def test_every_package_has_its_level():
    assert {part_of(name) for name in graph()} == set(LEVEL_OF)


def test_no_import_points_upwards():
    assert edges_upwards(graph()) == []


def test_no_cycle_of_packages():
    assert cycles(between_packages(graph())) == []


def test_no_cycle_of_modules():
    assert cycles(graph()) == []


def test_few_files_at_the_root_of_the_package():
    assert len(list((ROOT / "dgconv").glob("*.py"))) <= 8


@pytest.mark.parametrize(
    "line", ["from ..train import x", "def f():\n    from ..train import recipe", "import dgconv.train"]
)
def test_an_import_upwards_is_seen(tmp_path, line):
    for name in ("layers/a.py", "train/__init__.py", "train/recipe.py"):
        path = tmp_path / "dgconv" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line if name == "layers/a.py" else "")
    assert any("dgconv.layers.a imports dgconv.train" in edge for edge in edges_upwards(graph(tmp_path)))


def test_a_cycle_is_seen(tmp_path):
    (tmp_path / "dgconv").mkdir()
    (tmp_path / "dgconv/a.py").write_text("from .b import x")
    (tmp_path / "dgconv/b.py").write_text("def f():\n    from . import a")
    assert cycles(graph(tmp_path)) == [["dgconv.a", "dgconv.b"]]
