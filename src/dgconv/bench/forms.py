"""The forms in which a benchmark runs a network: torch, ours, and every runtime that a user might take instead."""

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..deploy.export.outputs import difference
from ..deploy.precision import Precision, prepare_as
from ..deploy.run.prepared import PreparedModel
from ..errors import UserError
from .runtimes import RUNTIMES, Runtime, Source
from .runtimes.record import Make, Runner

Kind = Literal["dense", "sgc", "dgc", "model"]  # the last one: of the user's own, whatever it is
LABELS: dict[Kind, str] = {"dense": "dense", "sgc": "SGC", "dgc": "DGC", "model": "model"}
OURS = "prepared"
AGREE: dict[Precision, float] = {"float32": 1e-3, "int8": 0.2}  # of the largest logit


def title_of(kind: Kind, name: str, precision: Precision) -> str:
    """What a row is called; float32 goes without saying."""
    return f"{LABELS[kind]}, {name}{' int8' * (precision == 'int8')}"


@dataclass(frozen=True)
class Form:
    """A network of one kind, and how to run it. ``get_ready()`` converts it, or says why that is not possible."""

    kind: Kind
    name: str
    get_ready: Callable[[], Make]
    layout: str = ""  # forms that differ in it alone are one row, that of the faster
    precision: Precision = "float32"

    @property
    def is_rival(self) -> bool:
        """Whether it is what a user would run without us."""
        return self.kind == "dense" and self.name != OURS

    @property
    def title(self) -> str:
        return title_of(self.kind, self.name, self.precision)


@contextmanager
def all_forms(
    networks: dict[Kind, nn.Module],
    input_size: tuple[int, int, int],
    calibration: Tensor,
    precisions: tuple[Precision, ...],
    compile: bool = False,
) -> Iterator[list[Form]]:
    """Every form there is, those included that lack something here; those of the last network come last."""
    with tempfile.TemporaryDirectory() as folder:
        forms: list[Form] = []
        has_dense = "dense" in networks  # if not, torch is what others are compared with, whatever their precision
        source = Source(networks["dense"], input_size, calibration, Path(folder)) if has_dense else None
        for precision in precisions:
            for kind, model in networks.items():
                if precision == "float32" or (not has_dense and "float32" not in precisions):
                    forms += _torch_forms(kind, model, compile and kind == "dense")
                if source and kind == "dense":
                    forms += [_rival(runtime, source) for runtime in RUNTIMES if runtime.precision == precision]
                forms.append(_ours(kind, model, precision, calibration, input_size))
        yield forms


def _torch_forms(kind: Kind, model: nn.Module, compile: bool) -> Iterator[Form]:
    yield Form(kind, "torch", lambda: _eager(model, torch.contiguous_format), "NCHW")
    yield Form(kind, "torch", lambda: _eager(model, torch.channels_last), "NHWC")
    if compile:
        yield Form(kind, "torch.compile", lambda: _compiled(model))


def _eager(model: nn.Module, layout: torch.memory_format) -> Make:
    def make(threads: int, images: Tensor) -> Runner:
        with torch.no_grad():
            laid_out = copy.deepcopy(model).to(memory_format=layout)  # type: ignore[call-overload]
        x = images.contiguous(memory_format=layout)
        return _without_grad(lambda: laid_out(x))

    return make


def _compiled(model: nn.Module) -> Make:
    if shutil.which("g++") is None:
        raise UserError("torch.compile needs g++")

    def make(threads: int, images: Tensor) -> Runner:
        torch._dynamo.reset()  # what was compiled before was so for another number of threads
        compiled = torch.compile(copy.deepcopy(model), dynamic=False, options={"freezing": True})
        return _without_grad(lambda: compiled(images))

    return make


def _rival(runtime: Runtime, source: Source) -> Form:
    return Form("dense", runtime.name, lambda: runtime.get_ready(source), precision=runtime.precision)


def _ours(
    kind: Kind, model: nn.Module, precision: Precision, calibration: Tensor, input_size: tuple[int, int, int]
) -> Form:
    def get_ready() -> Make:
        return Prepared(prepare_as(model, precision, calibration, example=torch.zeros(1, *input_size)))

    return Form(kind, OURS, get_ready, precision=precision)


@dataclass(frozen=True)
class Prepared:
    """What makes calls of a prepared model, for any number of threads."""

    model: PreparedModel

    def __call__(self, threads: int, images: Tensor) -> Runner:
        return lambda: self.model(images)


@torch.no_grad()
def differences(calls: dict[Form, Runner], networks: dict[Kind, nn.Module], images: Tensor) -> dict[Form, float]:
    """How far each form's result is from torch's in float32, relative to the largest logit."""
    expected = {kind: networks[kind](images) for kind in {form.kind for form in calls}}
    return {form: difference(call(), expected[form.kind]) for form, call in calls.items()}


def _without_grad(call: Runner) -> Runner:
    def run() -> Any:
        with torch.no_grad():
            return call()

    return run
