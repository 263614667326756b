"""From a trained model to one that is ready to run: what the CPU repeats for every image is done once, here."""

import copy
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from ...environment import refuse_missing_gpu
from ...errors import UserError
from ...layers.mode import check_has_modes
from ...layers.own_padding import put_plain_
from ...ops.fused import has_triton
from ..calls import Slot, TorchCall, called
from ..gpu.model import GpuModel
from ..graph import Conv, Graph, Torch
from ..run.prepared import PreparedModel
from .freeze import freeze as freeze_choices
from .fuse import fuse, pick_pixels
from .low_precision import Evaluate, Progress, to_int8
from .module_rules import rule_for
from .trace import Untranslatable, Whole, trace
from .translate import Translation, translate

PRECISIONS = ("float32", "int8")
GPU_PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@overload
def prepare(
    model: nn.Module,
    *,
    example: Tensor | None = ...,
    precision: Literal["float32", "int8"] | None = ...,
    calibration: Tensor | Iterable[Any] | None = ...,
    evaluate: Evaluate | None = ...,
    max_drop: float | None = ...,
    seconds: float = ...,
    force: bool = ...,
    freeze: Literal["auto"] | float | None = ...,
    progress: Progress | None = ...,
) -> PreparedModel: ...
@overload
def prepare(
    model: nn.Module, *, device: torch.device | str, precision: Literal["bfloat16", "float16"] | None = ...
) -> GpuModel: ...
def prepare(
    model: nn.Module,
    *,
    example: Tensor | None = None,
    device: torch.device | str = "cpu",
    precision: Literal["float32", "int8", "bfloat16", "float16"] | None = None,
    calibration: Tensor | Iterable[Any] | None = None,
    evaluate: Evaluate | None = None,
    max_drop: float | None = None,
    seconds: float = 600.0,
    force: bool = False,
    freeze: Literal["auto"] | float | None = None,
    progress: Progress | None = None,
) -> PreparedModel | GpuModel:
    """The same function, ready for fast inference on the CPU, or on a GPU.

    Batch norms are folded into convolutions, or moved in front of them; additions and activations happen while a
    convolution writes its result; dynamic convolutions compute only what their gates keep, at the rate at which they
    are now. What has no native form is left to torch, and ``.report()`` lists it.

    The model itself is not changed, and later changes of it do not reach the prepared one.

    In int8 weights and values between layers are bytes, and what a dynamic convolution leaves out is left out as well;
    generators compute in float32, with weights of bytes; gates and the classifier stay in float32. Where that is no
    faster here, the result is in float32.

    For a GPU the model must consist of convolutions, static ones and dynamic ones of 1x1 and 3x3 with head-wise gates,
    batch norms, ReLU, pooling and linear layers. For each shape of images that it meets it measures which form of each
    layer is fastest there, once, and captures a CUDA graph.

    Args:
        model: in eval mode, float32, on the CPU; called with one tensor, [batch, channels, height, width].
        example: images as the model will see them, if its code branches on their sizes or computes with them. Such code
            is followed as it runs for these, and what comes out takes images of this height and width only.
        device: ``cpu``, or a GPU such as ``cuda``.
        precision: of the result: ``float32`` (the default) or ``int8`` on the CPU, ``bfloat16`` (the default) or
            ``float16`` on a GPU.
        calibration: for int8 and `freeze`, images like those that it will see, normalized, without labels: a tensor
            [N, C, height, width], or batches of them (as a loader gives them; labels are passed over). About a hundred.
        evaluate: a function that is given the prepared network and returns its error in percent; with ``max_drop``.
        max_drop: by how many points the error may rise in int8. The layers that hurt most are put back to float32.
        seconds: that this may take.
        force: int8 also where it is slower.
        freeze: ``auto`` fixes choices that are the same of all calibration images, a number those of layers of which so
            much is, on average; see :func:`dgconv.deploy.freeze`.
        progress: is called with what is being done, how many times it was, and how many it will be.
    """
    check(model)
    if torch.device(device).type != "cpu":
        if any(given is not None for given in (calibration, evaluate, max_drop, freeze)):
            raise UserError("`calibration`, `evaluate`, `max_drop` and `freeze` are for the CPU")
        return _prepare_for_gpu(model, torch.device(device), precision or "bfloat16")
    precision = precision or "float32"
    if precision not in PRECISIONS:
        raise UserError(f"`precision` must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "float32" and (
        max_drop is not None or (freeze is None and (calibration, evaluate) != (None, None))
    ):
        raise UserError("`calibration`, `evaluate` and `max_drop` are for int8; give `precision='int8'` with them")
    if isinstance(freeze, str) and freeze != "auto":
        raise UserError(f"`freeze` must be auto or a share up to 1, got {freeze!r}")
    if freeze is not None and calibration is None:
        raise UserError("`freeze` looks at choices on images like those that the network will see: give `calibration`")
    if isinstance(calibration, Iterator):
        calibration = list(calibration)  # it is read twice
    # Weights still require gradients if they did: only with those does torch always multiply a batch in one go.
    with torch.no_grad():
        prepared = _prepare(_plain_copy(model), _checked_example(example))[0]
        if precision == "int8":
            limits: dict[str, Any] = {"evaluate": evaluate, "max_drop": max_drop, "seconds": seconds, "force": force}
            limits |= {} if max_drop is not None or freeze is None else {"evaluate": None}
            prepared = to_int8(prepared, calibration, progress=progress or (lambda *_: None), **limits)
    if freeze is None:
        return prepared
    return freeze_choices(prepared, calibration, overlap=1.0 if freeze == "auto" else freeze, evaluate=evaluate)


def _prepare_for_gpu(model: nn.Module, device: torch.device, precision: str) -> GpuModel:
    if device.type != "cuda":
        raise UserError(f"`device` must be cpu or a GPU (cuda), got {str(device)!r}")
    if precision not in GPU_PRECISIONS:
        raise UserError(f"`precision` on a GPU must be one of {', '.join(GPU_PRECISIONS)}, got {precision!r}")
    refuse_missing_gpu(str(device))
    if not has_triton():
        raise UserError("models are prepared for a GPU with Triton, which is not installed: pip install triton")
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise UserError(f"the kernels need a GPU of compute capability 8.0 or more, not {torch.cuda.get_device_name()}")
    with torch.no_grad():
        return GpuModel(graph_of(_plain_copy(model)), device, GPU_PRECISIONS[precision])


def graph_of(model: nn.Module) -> Graph:
    """The steps of a model that may be changed, or a :class:`UserError` if it cannot be followed."""
    whole = Whole(model)
    try:
        calls = trace(whole)
        return fuse(translate(calls.graph, whole, calls.left).graph)
    except Untranslatable as problem:
        raise UserError(f"the model cannot be prepared for a GPU: {problem}. Use the original there") from None


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel`` returned."""
    if isinstance(model, nn.DataParallel | DistributedDataParallel):
        return unwrapped(model.module)
    return unwrapped(model._orig_mod) if hasattr(model, "_orig_mod") else model  # type: ignore[arg-type]


def _plain_copy(model: nn.Module) -> nn.Module:
    """A copy that may be changed, whose convolutions say how they pad."""
    return put_plain_(_copied(unwrapped(model)), lambda layer: rule_for(layer) is not None)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:  # torch.nn.utils.prune and the old weight_norm leave weights that torch does not copy
        raise UserError(f"the model cannot be copied: {error}. Make its weights plain, as prune.remove does") from None


def check(model: nn.Module) -> None:
    """Refuse what cannot be prepared."""
    if not isinstance(model, nn.Module):
        raise UserError(f"prepare takes an nn.Module, got {type(model).__name__}")
    if isinstance(model, PreparedModel):
        raise UserError("the model is prepared already")
    check_has_modes(model)
    modes = {name: getattr(module, "training", False) for name, module in model.named_modules()}  # frozen script: none
    if training := [name or "the model" for name, is_training in modes.items() if is_training]:
        raise UserError(
            f"in training mode: {', '.join(training[:3])}{' ...' if len(training) > 3 else ''}; call model.eval() first"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise UserError(f"{name} has no values yet; call the model once before you prepare it")
        if tensor.device.type != "cpu":
            raise UserError(f"prepared models run on the CPU, and {name} is on {tensor.device}; call model.cpu() first")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise UserError(f"prepared models are float32, and {name} is {tensor.dtype}; call model.float() first")
    if not _takes_one_tensor(model):
        raise UserError(f"prepare takes models that are called with one tensor; {type(model).__name__} needs more")


def _checked_example(example: Any) -> Tensor | None:
    if example is None:
        return None
    is_image = isinstance(example, Tensor) and example.dim() == 4 and example.dtype == torch.float32
    if not is_image or example.device.type != "cpu" or not example.numel():
        found = f"{list(example.shape)}, {example.dtype}" if isinstance(example, Tensor) else type(example).__name__
        raise UserError(f"`example` must be images [batch, channels, height, width], float32, on the CPU; got {found}")
    return example[:1].detach()


def _prepare(model: nn.Module, example: Tensor | None = None) -> tuple[PreparedModel, Translation]:
    """Prepares a model that may be changed."""
    whole, size = Whole(model), None
    try:
        calls = trace(whole, example)
        left = calls.left
        if calls.is_of_one_size and example is not None:
            size = (example.shape[2], example.shape[3])
        translation = translate(calls.graph, whole, left)
    except Untranslatable as problem:
        left = {model: str(problem)}
        call = TorchCall(model, (Slot(0),), {})
        whole_call = Torch(["input"], "output", call, str(problem), type(model).__name__)
        translation = Translation(Graph("input", "output", [whole_call]), changes_input=False)
    graph = replace(pick_pixels(fuse(translation.graph)), size=size)
    inner: list[tuple[str, PreparedModel]] = []
    for step in graph.steps:
        if isinstance(step, Torch) and isinstance(module := called(step.function), nn.Module) and module in left:
            inner += _prepare_children(module, step.label)
    return PreparedModel(graph, inner), translation


def _prepare_children(module: nn.Module, path: str) -> list[tuple[str, PreparedModel]]:
    """Python runs the module; the largest parts of it that can be followed are prepared."""
    found: list[tuple[str, PreparedModel]] = []
    if isinstance(module, torch.jit.ScriptModule):
        return found
    for name, child in module.named_children():
        child_path = f"{path}.{name}"
        if not _takes_one_tensor(child) or "forward" in vars(child):
            found += _prepare_children(child, child_path)
            continue
        prepared, translation = _prepare(child)
        if translation.changes_input or not any(isinstance(step, Conv) for step in prepared.graph.steps):
            found += prepared.inner or _prepare_children(child, child_path)
        else:
            child.forward = FastForward(child, prepared)
            found += [(child_path, prepared), *prepared.inner]
    return found


class FastForward:
    """Takes the place of a module's ``forward``: the prepared one for what it takes, and the original for the rest."""

    def __init__(self, module: nn.Module, prepared: PreparedModel) -> None:
        self.module, self.prepared = module, prepared

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and self.prepared.fits(args[0]):
            return self.prepared(args[0])
        return type(self.module).forward(self.module, *args, **kwargs)


def _takes_one_tensor(model: nn.Module) -> bool:
    try:
        inspect.signature(model.forward).bind(Tensor())
    except TypeError:
        return False
    except ValueError:  # TorchScript that is frozen has no signature, and may take it
        return True
    return True
