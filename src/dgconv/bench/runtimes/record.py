"""What a runtime is: one record for each precision it runs in. A rival is one file here and is in every table."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...deploy.export.formats import require, save_onnx
from ...deploy.precision import Precision
from ...errors import UserError

Runner = Callable[[], Any]  # one pass over the images it was made for
Make = Callable[[int, Tensor], Runner]  # of a number of threads and images


@dataclass(frozen=True, eq=False)
class Source:
    """A network for others to convert, with images that show what numbers it meets, and a folder for their files."""

    model: nn.Module
    input_size: tuple[int, int, int]
    calibration: Tensor  # [images, channels, height, width]
    folder: Path

    def onnx_file(self) -> Path:
        """The network in standard operations, the input called ``images``; written when first asked for."""
        require("onnx")
        require("onnxscript")
        if self._why_no_onnx_file:
            raise UserError(f"no ONNX file: {self._why_no_onnx_file}")
        return self._onnx_file

    @property
    def _onnx_file(self) -> Path:
        return self.folder / "network.onnx"

    @cached_property
    def _why_no_onnx_file(self) -> str:
        try:
            with torch.no_grad():
                save_onnx(self.model, self._onnx_file, self.input_size)
        except UserError as error:
            return str(error)
        except Exception as error:  # whatever torch finds in a network that it cannot write
            return _in_a_line(error)
        return ""


@dataclass(frozen=True)
class Runtime:
    """Another way to run a network, in one precision. Raise :class:`UserError` where a network cannot be taken."""

    name: str
    precision: Precision
    packages: tuple[str, ...]  # to be imported, and whose versions the figures depend on
    convert: Callable[[Source], Any]  # once for a network: files, in the source's folder, or whatever ``load`` takes
    load: Callable[[Any, int, Tensor], Runner]  # with a number of threads, for these images; returns tensors

    def get_ready(self, source: Source) -> Make:
        for package in self.packages:
            require(package, extra="bench")
        converted = self._trying(lambda: self.convert(source))
        return lambda threads, images: self._trying(lambda: self._run_once(converted, threads, images))

    def _run_once(self, converted: Any, threads: int, images: Tensor) -> Runner:
        """Some refuse a network only when they run it."""
        runner = self.load(converted, threads, images)
        runner()
        return runner

    def _trying(self, step: Callable[[], Any]) -> Any:
        try:
            with _quietly():
                return step()
        except UserError:
            raise
        except Exception as error:  # of any kind, for it is others' code
            raise UserError(f"{self.name} does not take the network: {_in_a_line(error)}") from error


RUNTIMES: list[Runtime] = []


def register_runtime(runtime: Runtime) -> Runtime:
    """Makes a runtime known; it is measured wherever its precision is."""
    RUNTIMES.append(runtime)
    return runtime


def runtime_versions(precisions: tuple[Precision, ...]) -> dict[str, str | None]:
    """The version of every package that runtimes of these precisions need; None for what is not installed."""
    packages = [package for one in RUNTIMES if one.precision in precisions for package in one.packages]
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what others print, log and warn about. Standard error is left alone: a progress bar may be on it."""
    root = logging.getLogger()
    handlers, disabled = root.handlers[:], root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers  # the first to log a line through the module gets it one


def _in_a_line(error: Exception) -> str:
    line = next(filter(None, map(str.strip, str(error).splitlines())), "")
    return f"{type(error).__name__}{': ' * bool(line)}{line}"[:200]
