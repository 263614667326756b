"""``python -m reproduce walks``: how far a reader of the code goes who follows one thing that it does.

The rule, for a call that is followed by ``sys.setprofile`` in a process of its own:

* A walk is through the packages that it is about. What these ask of another package is one step, and not followed.
* A **file** of Python is touched when a function in it is called. What runs while a module is imported is not read.
* A reader reads each function or class of a module as a whole, when it is first called. It is a **return** if that call
  leads from another file into one that was touched before: to read on in a file that was left. Coming back from a call
  is none.
* How often each file of the run folder is opened for reading is counted, too.
"""

import json as json_format
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from PIL import Image
from rich.table import Column
from tyro.conf import Positional

import dgconv
from dgconv.analysis.predict import open_predictor
from dgconv.cli import main as run_command
from dgconv.cli._output import console, show
from dgconv.data.brought import bring
from dgconv.errors import UserError
from dgconv.text import print_table

PACKAGE = str(Path(dgconv.__file__).parent)
SMALL = ("--stages", "2", "1", "1", "--growth", "4", "8", "16", "--image-size", "16", "--epochs", "1")
COMPARE = ("--methods", "sgc,dgc", "--epochs", "1", "--image-size", "8", "--out", "compared")


@dataclass(frozen=True)
class Route:
    """A walk to take: ``start`` makes what is followed when it is called."""

    title: str
    packages: tuple[str, ...]
    start: Callable[[], Callable[[], Any]]
    most: tuple[int, int]  # files and returns, aimed at


def _predict() -> Callable[[], Any]:
    predictor, images = open_predictor(Path("prepared")), bring([Path("image.png")])
    return lambda: predictor(images)


ROUTES = {
    "image": Route(
        "an image to its scores, by a prepared network", ("analysis", "data", "deploy"), _predict, (20, 4)
    ),
    "page": Route(
        "a run folder to its page", ("cli", "runs", "report"),
        lambda: lambda: run_command(["report", "run", "--out", "page.html"]), (16, 3),
    ),
    "compare": Route(
        "two methods side by side", ("cli", "runs", "bench", "compare"),
        lambda: lambda: run_command(["compare", *COMPARE]), (22, 5),
    ),
}  # fmt: skip


@dataclass
class Walk:
    """The files in the order in which they are first entered, where one is returned to, and what is read of the run."""

    files: list[str] = field(default_factory=list)
    returns: list[str] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)


@contextmanager
def following(packages: tuple[str, ...], run: Path) -> Iterator[Walk]:
    """Fills a :class:`Walk` with what happens inside, in all threads."""
    walk, known, opened = Walk(), set[tuple[str, str]](), Counter[str]()
    importing: dict[int, FrameType] = {}  # by thread, the module that is

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        thread, code = threading.get_ident(), frame.f_code
        if event == "return" and importing.get(thread) is frame:
            del importing[thread]
        if event != "call" or thread in importing:
            return
        if code.co_name == "<module>":
            importing[thread] = frame
            return
        file = _followed(frame, packages)
        unit = code.co_qualname.partition(".")[0]
        if file is None or (file, unit) in known:
            return
        known.add((file, unit))
        caller = _caller(frame, packages)
        if file not in walk.files:
            walk.files.append(file)
        elif caller not in (file, None):
            walk.returns.append(f"{caller} -> {file}: {unit}")

    def on_open(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(values[0], str) and "r" in (values[1] or ""):
            path = Path(values[0]).absolute()
            if path.is_relative_to(run) and path.is_file():
                opened[path.name] += 1

    sys.addaudithook(on_open)
    threading.setprofile(on_event)
    sys.setprofile(on_event)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        walk.read = dict(opened)


def _followed(frame: FrameType, packages: tuple[str, ...]) -> str | None:
    """The file that a frame is in, if it is in one of the packages."""
    name = frame.f_code.co_filename
    file = name[len(PACKAGE) + 1 :] if name.startswith(PACKAGE) else ""
    return file if file.split("/")[0] in packages and file.endswith(".py") else None


def _caller(frame: FrameType, packages: tuple[str, ...]) -> str | None:
    """The nearest file of the packages that called, if only through others."""
    above = frame.f_back
    while above is not None and _followed(above, packages) is None:
        above = above.f_back
    return above and _followed(above, packages)


def walks(names: Positional[tuple[str, ...]] = (), verbose: bool = False, json: bool = False) -> None:
    """Count the files of the code that a reader goes through who follows a command, and how often back into one.

    Args:
        names: Only these of image, page, compare.
        verbose: Name the files and the returns, too.
        json: Print JSON instead of a table.
    """
    if unknown := set(names) - ROUTES.keys():
        raise UserError(f"there is no walk called {' or '.join(sorted(unknown))}; there are {', '.join(ROUTES)}")
    with TemporaryDirectory() as folder:
        _prepare(Path(folder))
        found = {name: _follow_apart(name, folder) for name in names or ROUTES}
    show({name: asdict(walk) for name, walk in found.items()}, json, lambda _: _print(found, verbose))


def _prepare(folder: Path) -> None:
    """A run, a network prepared from it and an image, for all walks."""
    run = str(folder / "run")
    Image.new("RGB", (16, 16), (90, 30, 60)).save(folder / "image.png")
    with redirect_stdout(StringIO()):
        run_command(["train", *SMALL, "--out", run])
        run_command(["export", run, "--format", "prepared", "--out", str(folder / "prepared")])


def _follow_apart(name: str, folder: str) -> Walk:
    """In a process of its own, in which nothing has been called before."""
    places = [str(Path(__file__).resolve().parents[1]), str(Path(PACKAGE).parent)]
    code = f"import sys; sys.path[:0] = {places!r}; from reproduce.walks import follow; follow({name!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return Walk(**json_format.loads(done.stdout.splitlines()[-1]))


def follow(name: str) -> None:
    """Print the walk of that name as JSON."""
    route = ROUTES[name]
    with redirect_stdout(StringIO()):
        call = route.start()
        with following(route.packages, Path("run").absolute()) as walk:
            call()
    print(json_format.dumps(asdict(walk)))


def _print(found: dict[str, Walk], verbose: bool) -> None:
    rows = []
    for name, walk in found.items():
        route, read = ROUTES[name], max(walk.read.values(), default="")
        most = [f"at most {count}" for count in route.most]
        rows.append([route.title, str(len(walk.files)), most[0], str(len(walk.returns)), most[1], str(read)])
    headings = ["walk", "files", "aim", "returns", "aim", "reads of a file of the run"]
    columns = [Column(heading, justify="right" if n else "left") for n, heading in enumerate(headings)]
    print_table(console, "Walks", columns, rows, ())
    for name, walk in found.items() if verbose else ():
        parts = {"files": walk.files, "returns": walk.returns, "read": [f"{n} {c}" for n, c in walk.read.items()]}
        for what, lines in parts.items():
            console.print(f"\n{name}, {what}:", *lines, sep="\n  ", highlight=False, markup=False, soft_wrap=True)
