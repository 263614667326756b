"""The code blocks of the pages: found, run in their order, and what they print written below them.

A comment in the line before a block says what is special about it::

    <!-- not run: REASON -->            nothing writes its output below it; the tests run it, or what follows
    <!-- tested as: LINE -->            what the tests run in its place, for it would take too long; once for each line
    <!-- tested in: FILE -->            the test that runs just this
    <!-- exits: STATUS -->              it shows a mistake; otherwise a block must succeed
    <!-- no output: REASON -->          what it prints is not shown
    <!-- first lines: NUMBER -->        how much of what it prints the page shows

What a block prints stands behind it, in a block of its own under ``<!-- output -->``.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgconv.cli import _output as cli_output
from dgconv.cli import main as dgconv
from dgconv.errors import UserError

WIDTH = 80
BLOCK = re.compile(
    r"(?P<marks>(?:^<!-- [^\n]*? -->\n)*)^(?P<fence>```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```\n)"
    r"(?P<output>\n<!-- output -->\n```text\n.*?^```\n)?",
    re.DOTALL | re.MULTILINE,
)
MARKS = {"not run", "tested as", "tested in", "exits", "no output", "first lines"}
LANGUAGES = {"python", "sh"}


@dataclass(frozen=True)
class Block:
    """A piece of Python, or some lines for a shell."""

    language: str
    code: str
    marks: dict[str, str]

    @property
    def is_run(self) -> bool:
        return "not run" not in self.marks

    @property
    def lines(self) -> list[str]:
        """What a shell is told, without comments."""
        lines = (line.split("  #")[0].rstrip() for line in self.code.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not line.startswith("#")]

    @property
    def tested_code(self) -> str:
        """What the tests run of it."""
        return self.marks.get("tested as", self.code)

    @property
    def status(self) -> int:
        return int(self.marks.get("exits", 0))

    def shown(self, printed: str) -> str:
        """The part of what it prints that the page has."""
        if "no output" in self.marks:
            return ""
        lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
        most = int(self.marks.get("first lines", len(lines)))
        return "\n".join([*lines[:most], *(["..."] if len(lines) > most else [])])


def blocks_of(text: str) -> list[Block]:
    """All blocks of a page that are in a language which can be run."""
    return [_block(found) for found in _found(text)]


def _found(text: str) -> Iterator[re.Match[str]]:
    return (found for found in BLOCK.finditer(text) if found["language"] in LANGUAGES)


def _block(found: re.Match[str]) -> Block:
    marks = {}
    for mark in re.findall(r"<!-- (.*?) -->", found["marks"]):
        name, _, value = mark.partition(": ")
        if name in MARKS:
            marks[name] = f"{marks[name]}\n{value}" if name in marks else value
    return Block(found["language"], found["code"], marks)


class Session:
    """One reader who goes through a page: a folder, and the names that the Python blocks have defined so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block, code: str | None = None) -> str:
        """What the block prints; ``code`` may stand in for its own."""
        code = block.code if code is None else code
        printed = io.StringIO()
        with chdir(self.folder), redirect_stdout(printed), _as_wide_as_a_page():
            if block.language == "python":
                exec(compile(code, "<page>", "exec"), self.names)
                return printed.getvalue()
            with redirect_stderr(printed):
                for line in Block("sh", code, {}).lines:
                    status = _run_line(line)
                    if status != block.status:
                        raise UserError(f"'{line}' ended with status {status}:\n{printed.getvalue()}")
        return printed.getvalue()


def _run_line(line: str) -> int:
    """A command of ours runs in this process, which has imported torch; everything else in a shell."""
    words = shlex.split(line, comments=True)
    if words[0] == "dgconv" and not {"|", "&&", ">", "&"} & set(words):
        try:
            dgconv(words[1:])
        except SystemExit as exit:
            return exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        return 0
    done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    return done.returncode


@contextlib.contextmanager
def _as_wide_as_a_page() -> Iterator[None]:
    before, columns = cli_output.console.width, os.environ.get("COLUMNS")
    cli_output.console.width, os.environ["COLUMNS"] = WIDTH, str(WIDTH)
    try:
        yield
    finally:
        cli_output.console.width = before
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns


def with_outputs(text: str, session: Session) -> str:
    """A page with what its blocks print, run from the first to the last."""

    def replace(found: re.Match[str]) -> str:
        block = _block(found)
        if found["language"] not in LANGUAGES or not block.is_run:
            return found[0]
        shown = block.shown(session.run(block))
        output = f"\n<!-- output -->\n```text\n{shown}\n```\n" if shown else ""
        return f"{found['marks']}{found['fence']}{output}"

    return BLOCK.sub(replace, text)
