"""The forms in which a benchmark runs a network: torch, ONNX Runtime, OpenVINO and ours."""

import copy
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..deploy.compile.prepare import prepare
from ..deploy.export.formats import require, save_onnx
from ..deploy.export.outputs import difference, tensors_of
from ..errors import UserError

Kind = Literal["dense", "sgc", "dgc", "model"]  # the last one: of the user's own, whatever it is
Runner = Callable[[], Any]  # one pass over the images it was made for
AGREE = 1e-3  # of the largest logit


@dataclass(frozen=True)
class Form:
    """A network of one kind, and how to run it. ``make(threads, images)`` gets it ready, or says why it cannot."""

    kind: Kind
    name: str
    make: Callable[[int, Tensor], Runner]
    layout: str = ""  # forms that differ in it alone are one row, that of the faster


@contextmanager
def all_forms(
    networks: dict[Kind, nn.Module], input_size: tuple[int, int, int], compile: bool = False
) -> Iterator[list[Form]]:
    """Every form there is, those included that lack something here."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dense.onnx"

        @cache
        def why_no_onnx_file() -> str:
            try:
                with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                    save_onnx(networks["dense"], file, input_size)
            except Exception as error:  # whatever torch finds in a network that it cannot write
                return f"no ONNX file: {type(error).__name__}"
            return ""

        def onnx_file() -> Path:
            if problem := why_no_onnx_file():
                raise UserError(problem)
            return file

        forms: list[Form] = []
        for kind, model in networks.items():
            forms += [
                Form(kind, "torch", _eager(model, torch.contiguous_format), "NCHW"),
                Form(kind, "torch", _eager(model, torch.channels_last), "NHWC"),
            ]
            if kind == "dense":
                forms += [Form(kind, "torch.compile", _compiled(model))] if compile else []
                forms += [
                    Form(kind, "ONNX Runtime", lambda threads, x: _onnx_runtime(onnx_file, threads, x)),
                    Form(kind, "OpenVINO", lambda threads, x: _openvino(onnx_file, threads, x)),
                ]
            forms.append(Form(kind, "prepared", _prepared(model)))
        yield forms


def _eager(model: nn.Module, layout: torch.memory_format) -> Callable[[int, Tensor], Runner]:
    def make(threads: int, images: Tensor) -> Runner:
        with torch.no_grad():
            laid_out = copy.deepcopy(model).to(memory_format=layout)  # type: ignore[call-overload]
        x = images.contiguous(memory_format=layout)
        return _without_grad(lambda: laid_out(x))

    return make


def _compiled(model: nn.Module) -> Callable[[int, Tensor], Runner]:
    def make(threads: int, images: Tensor) -> Runner:
        if shutil.which("g++") is None:
            raise UserError("needs g++")
        torch._dynamo.reset()  # what was compiled before was so for another number of threads
        compiled = torch.compile(copy.deepcopy(model), dynamic=False, options={"freezing": True})
        return _without_grad(lambda: compiled(images))

    return make


def _prepared(model: nn.Module) -> Callable[[int, Tensor], Runner]:
    ready = cache(lambda: prepare(model))

    def make(threads: int, images: Tensor) -> Runner:
        prepared = ready()
        return lambda: prepared(images)

    return make


def _onnx_runtime(file: Callable[[], Path], threads: int, images: Tensor) -> Runner:
    runtime = _installed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(str(file()), options, providers=["CPUExecutionProvider"])
    inputs = {"images": images.numpy()}
    return lambda: [torch.from_numpy(output) for output in session.run(None, inputs)]


def _openvino(file: Callable[[], Path], threads: int, images: Tensor) -> Runner:
    core = _installed("openvino").Core()
    model = core.read_model(file())
    model.reshape(list(images.shape))
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # on some processors it would take bfloat16 by itself
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    array = images.numpy()
    return lambda: [torch.from_numpy(output) for output in request.infer([array], share_inputs=True).values()]


def _installed(name: str) -> Any:
    """A runtime and what writes its file, or 'not installed' for the table."""
    try:
        require("onnx")
        require("onnxscript")
        return require(name)
    except UserError:
        raise UserError("not installed") from None


def disagreement(forms: dict[Form, Runner]) -> list[str]:
    """What forms of one network compute differently: a warning each."""
    problems = []
    expected: dict[Kind, list[Tensor]] = {}
    for form, call in forms.items():
        result = [tensor.clone() for tensor in tensors_of(call())]
        if form.kind not in expected:
            expected[form.kind] = result
            continue
        gap = difference(result, expected[form.kind])
        if not gap <= AGREE:
            problems.append(
                f"{form.kind}, {form.name} {form.layout}".strip()
                + f" differs from torch by {gap:.1g} of the largest logit"
            )
    return problems


def _without_grad(call: Runner) -> Runner:
    def run() -> Any:
        with torch.no_grad():
            return call()

    return run
