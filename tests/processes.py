"""Processes that begin at once, because they are forked from one that has torch and dgconv imported.

Each is a process like any other: it can be killed or stopped, and has its own folder, output and exit code. What a new
interpreter adds is tested in test_cli.py and where ``fresh`` is asked for.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from dgconv.cli import main

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        "dgconv.cli", "dgconv.cli.train", "dgconv.train", "dgconv.analysis.summary",
        "sklearn.datasets", "tensorboard", "torch._dynamo", "torch.utils.tensorboard",  # what a training imports late
    ]
)  # fmt: skip


def run_here(capsys, *arguments) -> tuple[int, str, str]:
    """``dgconv`` in this process: exit code, standard output and standard error."""
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as exit:
        code = exit.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def _run(arguments: Sequence[str], folder: Path, output: str, errors: str) -> None:
    for number, file in ((1, output), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(folder)
    multiprocessing.set_start_method(None, force=True)  # the default again, for processes that it starts
    torch.set_num_threads(1)
    main(arguments)


class Forked:
    """``dgconv ARGUMENTS`` in a process of its own, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._files = TemporaryDirectory()
        output = [f"{self._files.name}/{name}" for name in ("output", "errors")]
        self._process = FORKSERVER.Process(target=_run, args=([*map(str, arguments)], folder, *output))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = 120) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"dgconv did not end in {timeout} seconds")
        return self._process.exitcode

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """Waits for its end; what it wrote to its output and to its standard error."""
        self.wait(timeout)
        files = [Path(self._files.name, name) for name in ("output", "errors")]
        return tuple(file.read_text() if file.exists() else "" for file in files)


def start_dgconv(*arguments: object, folder: Path | str = ".", fresh: bool = False) -> "Forked | subprocess.Popen[str]":
    """Begins ``dgconv ARGUMENTS`` in ``folder``; ``fresh``: in an interpreter that has imported nothing yet."""
    folder = Path(folder).resolve()
    if not fresh:
        return Forked(arguments, folder)
    command = [sys.executable, "-m", "dgconv", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=environment)


def run_dgconv(*arguments: object, folder: Path | str = ".") -> tuple[int, str, str]:
    """Exit code, output and standard error of ``dgconv ARGUMENTS`` in a process of its own."""
    process = start_dgconv(*arguments, folder=folder)
    output, errors = process.communicate()
    return process.returncode, output, errors
