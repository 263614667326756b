"""Networks written for other programs: ONNX, torch.export and AOTInductor; or prepared. Each with a dynamic batch.

What each of them computes:

- ``onnx``: standard operations only, so that any runtime takes it. There is none for dynamic group convolution, so
  every channel is multiplied, the left out ones by zero: **the right result, and no time saved**.
- ``torch``: an ``ExportedProgram`` that holds our operation. Load it with ``torch.export.load`` after
  ``import dgconv``.
- ``aoti``: compiled ahead of time, with our operation called from it. Load it with
  ``torch._inductor.aoti_load_package`` after ``import dgconv``. It runs on the kind of machine that compiled it.
- ``prepared``: a folder for ``deploy.load``, on any CPU. The only one that leaves channels out, and that int8 has.
"""

import contextlib
import errno
import io
import math
import os
import shutil
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ...cost.macs import check_input_size
from ...data import Inputs
from ...errors import UserError
from ...layers.mode import evaluating
from ...layers.select import dynamic_layers
from ...models import load_model
from ...models.storage import input_size_of
from ...pruning import what_is_left
from ...runs import RunFolder
from ..compile.prepare import unwrapped
from ..precision import Precision, prepare_as
from ..run.prepared import PreparedModel
from ..storage import load, save
from . import outputs
from .outputs import worst
from .scratch import scratch_folder

Format = Literal["onnx", "torch", "aoti", "prepared"]
Network = Callable[[Tensor], Any]

SUFFIX: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2", "aoti": ".pt2", "prepared": ""}
CHECKED_BATCHES = (1, 7)
NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), contextlib.__file__)
MASKED_DENSE = (
    "ONNX has no operation that leaves channels out: this file multiplies all of them, the left out ones by zero. "
    "It gives the right result and saves no time"
)
FOR_LOAD = "A folder that dgconv.deploy.load reads"
NEEDS_IMPORT = "It holds dgconv's own operation: 'import dgconv' before loading it"


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how far its result is from the network's, relative to the largest value."""

    file: str
    format: Format
    bytes: int
    input_size: tuple[int, int, int]
    difference: float
    note: str
    precision: Precision = "float32"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def export_model(
    model: nn.Module,
    file: Path | str,
    format: Format,
    input_size: tuple[int, int, int],
    *,
    precision: Precision = "float32",
    calibration: Tensor | None = None,
    inputs: Inputs | None = None,
    freeze: bool = False,
) -> Exported:
    """Write a network for images of one size and batches of any, and hold the file's result against the network's.

    It may be any network, of ``create_model`` or your own, that takes one tensor and returns one or several.
    The file is new: nothing is overwritten, and nothing is left behind if the export fails. If it is killed, a hidden
    folder stays beside the file, which the next export there removes.

    Args:
        model: as trained or converted, not prepared; on the CPU. It is written as it is in eval mode.
        file: ends in ``.onnx``, or in ``.pt2`` for "torch" and "aoti"; "prepared" makes a folder.
        format: "onnx", "torch", "aoti" or "prepared"; see :mod:`dgconv.deploy.export.formats`.
        input_size: channels, height and width of the images.
        precision: "int8" is for "prepared" only.
        calibration: images for int8 and ``freeze``, like those it will see.
        inputs: how images become its input, kept beside a prepared network for ``dgconv predict``.
        freeze: of a prepared network: fix the choices that are the same of all these images.
    """
    _check(model)
    check_input_size(input_size)
    model, file = unwrapped(model), Path(file)
    if format not in SUFFIX:
        raise UserError(f"format must be one of {', '.join(SUFFIX)}, got {format!r}")
    check_precision(precision, format, freeze)
    if SUFFIX[format] and file.suffix != SUFFIX[format]:
        raise UserError(f"{file}: a file of format {format!r} must end in {SUFFIX[format]}")
    if file.exists():
        raise UserError(f"{file} exists; name another file or remove it")
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is not a folder; make it first")
    with (
        evaluating(model),
        scratch_folder(file.parent) as folder,
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # torch's, about itself
        temporary = folder / file.name
        try_images(model, _example(model, 1, input_size))
        if format == "prepared":
            prepared = prepare_as(model, precision, calibration, "auto" if freeze else None)
            save(prepared, temporary, inputs=inputs)
            written: Network = load(temporary)
        else:
            written = WRITERS[format](model, temporary, input_size)
        examples = [_example(model, batch, input_size) for batch in CHECKED_BATCHES]
        if calibration is not None:  # noise is beyond the ranges that it has, and makes other choices
            examples = [calibration[:batch] for batch in CHECKED_BATCHES]
        difference = worst(outputs.difference(written(images), model(images)) for images in examples)
        if math.isnan(difference):
            raise UserError(
                "the network gives NaN or infinite values, so what is written cannot be compared with it, and is not "
                "kept. See whether its weights are finite, and what it says of images of its own: 'dgconv eval RUN'"
            )
        os.replace(temporary, file)
    is_dynamic = any(True for _ in dynamic_layers(model))
    notes: dict[Format, str] = {"prepared": FOR_LOAD}
    if is_dynamic:
        notes |= {"onnx": MASKED_DENSE, "torch": NEEDS_IMPORT, "aoti": NEEDS_IMPORT}
    size = sum(part.stat().st_size for part in (file.iterdir() if file.is_dir() else [file]))
    return Exported(str(file), format, size, input_size, difference, notes.get(format, ""), precision)


def check_precision(precision: Precision, format: Format, freeze: bool) -> None:
    if precision not in get_args(Precision):
        raise UserError(f"`precision` must be {' or '.join(get_args(Precision))}, got {precision!r}")
    if precision == "int8" and format != "prepared":
        raise UserError(
            f"int8 is written in the format 'prepared' only, got {format!r}; change `format` or `precision`"
        )
    if freeze and format != "prepared":
        raise UserError(f"`freeze` is for the format prepared, not for {format}")


def _check(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"export_model takes an nn.Module, got a {type(model).__name__}")
    if any(isinstance(module, PreparedModel) for module in model.modules()):
        raise UserError("a prepared model cannot be exported; export the model it was prepared from")
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu":
            raise UserError(
                f"networks are exported from the CPU, and {name} is on {parameter.device}; call model.cpu() first"
            )


@torch.no_grad()
def try_images(model: nn.Module, images: Tensor) -> None:
    """Refuse images that the network does not take."""
    try:
        model(images)
    except (RuntimeError, TypeError, ValueError) as error:
        size = " x ".join(map(str, images.shape[1:]))
        raise UserError(f"the network does not take images of {size}: {str(error).rstrip('.')}") from error


def export_run(
    run: RunFolder | Path | str,
    file: Path | str,
    format: Format,
    *,
    precision: Precision = "float32",
    calibration: Tensor | None = None,
    inputs: Inputs | None = None,
    freeze: bool = False,
) -> Exported:
    """The network of a run folder, or of a folder ``save_model`` wrote, for images of the size it was trained on.

    Of a network whose filters are pruned, what is left.
    """
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    model = load_model(run)
    size = input_size_of(run, model)
    how: dict[str, Any] = {"precision": precision, "calibration": calibration, "inputs": inputs, "freeze": freeze}
    return export_model(what_is_left(model), file, format, size, **how)


def traced(model: nn.Module, input_size: tuple[int, ...]) -> ExportedProgram:
    """The network as torch.export sees it, with our operation in it."""
    example = _example(model, 2, input_size)  # not 1, which torch.export would take for a constant
    with _told_in_a_line("torch.export cannot follow the network"):
        return torch.export.export(model, (example,), dynamic_shapes=({0: Dim("batch", min=1)},))


@contextmanager
def _told_in_a_line(trouble: str) -> Iterator[None]:
    """Torch's refusals run to pages, which stay as the cause; what was wrong is in the first line of the first one, and
    where in a line of its own. The graph as far as it got goes to standard error, and nobody asked for it."""
    try:
        with redirect_stderr(io.StringIO()):
            yield
    except Exception as error:  # of many kinds, few of them torch's own
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        line = next(filter(None, map(str.strip, str(first).splitlines())), type(first).__name__)
        frames = [frame for frame in extract_tb(first.__traceback__) if not frame.filename.startswith(NOT_THE_USERS)]
        where = f", in {frames[-1].name} ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        raise UserError(
            f"{trouble}: {textwrap.shorten(line, 300).rstrip('.')}{where}. Write that part in another way, or use "
            "deploy.prepare, which leaves to torch what it cannot take"
        ) from error


def save_onnx(model: nn.Module, file: Path, input_size: tuple[int, ...]) -> None:
    """Writes standard operations into one file, the input called ``images`` and the output ``logits``.

    Several outputs are called by their places in what the network returns; see :func:`outputs.names_of`.
    """
    require("onnx")
    require("onnxscript")
    output_names = outputs.names_of(model(_example(model, 2, input_size)))
    program = traced(model, input_size).run_decompositions(
        {torch.ops.dgconv.dynamic_group_conv2d.default: _in_standard_operations}
    )
    with _told_in_a_line("torch cannot write the network as ONNX"):
        onnx_program = torch.onnx.export(
            program,
            (),
            input_names=["images"],
            output_names=output_names,
            dynamo=True,
            verbose=False,
            custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
        )
    assert onnx_program is not None
    _name_the_batch(onnx_program.model.graph)
    require("onnx_ir.passes.common").NameFixPass()(onnx_program.model)  # a value inside may be called like an output
    onnx_program.save(str(file), external_data=False)


def _name_the_batch(graph: Any) -> None:
    """``batch``, in the place of a name made up by torch."""
    (images,) = graph.inputs
    made_up = images.shape[0]
    for value in (images, *graph.outputs):
        if value.shape and value.shape[0] == made_up:
            value.shape[0] = "batch"


def write_onnx(model: nn.Module, file: Path, input_size: tuple[int, ...]) -> Network:
    """Write, and load with ONNX Runtime. The result is a list of tensors."""
    runtime = require("onnxruntime")
    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float64):
            raise UserError(f"ONNX Runtime has no {parameter.dtype} convolutions on the CPU; call model.float() first")
    save_onnx(model, file, input_size)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda x: [torch.from_numpy(output) for output in session.run(None, {"images": x.numpy()})]


def write_torch(model: nn.Module, file: Path, input_size: tuple[int, int, int]) -> Network:
    content = io.BytesIO()  # not the file: on a full disk, torch's own writer ends the process
    torch.export.save(traced(model, input_size), content)
    file.write_bytes(content.getvalue())
    return torch.export.load(file).module()


def write_aoti(model: nn.Module, file: Path, input_size: tuple[int, int, int]) -> Network:
    """Compile, which takes a C++ compiler and half a minute or more."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"AOTInductor needs a C++ compiler, and there is no {compiler!r}. Install g++, or name another in CXX"
        )
    content = io.BytesIO()  # as in write_torch
    try:
        torch._inductor.aoti_compile_and_package(traced(model, input_size), package_path=content)
    except RuntimeError as error:  # whatever it was: torch makes one of its own of it
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise UserError(
            f"there is no space left where torch compiles, in {tempfile.gettempdir()} or in its cache. "
            "Make room there, or name another folder in TMPDIR"
        ) from None
    file.write_bytes(content.getvalue())
    loaded: Network = torch._inductor.aoti_load_package(str(file))
    return loaded


WRITERS: dict[Format, Callable[[nn.Module, Path, tuple[int, int, int]], Network]] = {
    "onnx": write_onnx,
    "torch": write_torch,
    "aoti": write_aoti,
}


def require(name: str, extra: str = "export") -> Any:
    """A package that comes with an extra."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f'this needs {error.name or name}, which is not installed: pip install "dgconv[{extra}]"'
        ) from None


def _in_standard_operations(
    x: Tensor, weight: Tensor, gates: Tensor, stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """``dynamic_group_conv2d`` out of operations that every runtime has; see :mod:`dgconv.ops.training`."""
    heads = gates.shape[1]
    by_head = weight.unflatten(0, (-1, heads))  # [C'/H, H, C, k, k]
    if weight.shape[2:] == (1, 1) and tuple(padding) == (0, 0):
        folded = (by_head.flatten(2) * gates[:, None]).flatten(1, 2)  # [B, C', C]
        pixels = x[:, :, :: stride[0], :: stride[1]]
        return (folded @ pixels.flatten(2)).unflatten(2, pixels.shape[2:])
    scaled = (x[:, None] * gates[..., None, None]).flatten(1, 2)  # [B, H*C, height, width]
    weight = by_head.transpose(0, 1).flatten(0, 1)  # head after head, as a grouped convolution has it
    out = F.conv2d(scaled, weight, None, stride, padding, dilation, heads)
    return out.unflatten(1, (heads, -1)).transpose(1, 2).flatten(1, 2)


def _stable_sort(self: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Gives the exporter a stable sort, which it lacks. ONNX's TopK gives equal values in the order of their indices,
    as we need."""
    from onnxscript import opset18 as op

    count: Any = op.Constant(value_ints=[self.shape[dim]])
    return op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)


def _example(model: nn.Module, batch: int, input_size: tuple[int, ...]) -> Tensor:
    """Random images, as precise as the network."""
    dtypes = [parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()]
    return torch.randn(batch, *input_size, dtype=dtypes[0] if dtypes else None)
