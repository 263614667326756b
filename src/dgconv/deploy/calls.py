"""A call that torch is left to make: the function, and which of its arguments are values of the graph."""

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Slot:
    """Stands for the value of that number among those a call is given."""

    index: int


@dataclass
class TorchCall:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __post_init__(self) -> None:
        slots: list[Slot] = []
        map_aggregate((self.args, self.kwargs), lambda leaf: slots.append(leaf) if isinstance(leaf, Slot) else None)
        self._is_flat = len(slots) == sum(isinstance(arg, Slot) for arg in self.args)

    def __call__(self, *values: Any) -> Any:
        if self._is_flat:  # most are, and to look into every argument takes as long as a short call
            return self.function(*[values[arg.index] if type(arg) is Slot else arg for arg in self.args], **self.kwargs)
        args, kwargs = map_aggregate(
            (self.args, self.kwargs), lambda leaf: values[leaf.index] if isinstance(leaf, Slot) else leaf
        )
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by the function's name, if it has one here: there is no pickling ``F.max_pool2d``."""
        return _call, (NAMES.get(self.function, self.function), self.args, self.kwargs)


def _call(function: Callable[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TorchCall:
    return TorchCall(STORABLE[function] if isinstance(function, str) else function, args, kwargs)


@dataclass(eq=False)
class Together:
    """Puts the parts of a result into its tuples, lists and dicts, each where ``result`` has its number."""

    result: Any

    def __call__(self, *parts: Any) -> Any:
        return pytree.tree_map(lambda number: parts[number], self.result)


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a step that is left to torch calls in the end."""
    return function.function if isinstance(function, TorchCall) else function


def overwriting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The call of an elementwise function in the form that writes over what it is given, if there is one."""
    if not isinstance(function, TorchCall) or function.function not in ELEMENTWISE.values():
        return function
    if not takes_inplace(function.function):
        return function
    bound = inspect.signature(function.function).bind(*function.args, **function.kwargs)
    bound.arguments["inplace"] = True
    return TorchCall(function.function, bound.args, bound.kwargs)


def takes_inplace(function: Callable[..., Any]) -> bool:
    try:
        return "inplace" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin, which has no signature
        return False


def name_of(function: Callable[..., Any]) -> str:
    function = called(function)
    if isinstance(function, nn.Module | Together):
        return type(function).__name__
    return NAMES.get(function) or str(getattr(function, "__name__", function))


def as_function(layer: nn.Module) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The function that a layer of torch's stands for, and its options; None if it is more than that."""
    if type(layer) not in FUNCTIONS or "forward" in vars(layer) or layer._forward_hooks or layer._forward_pre_hooks:
        return None
    function, *options = FUNCTIONS[type(layer)]
    return function, {name: getattr(layer, name) for name in options}


def to_planes(rows: Tensor) -> Tensor:
    """[B, C] to [B, C, 1, 1]."""
    return rows[:, :, None, None]


def _listed(prefix: str, owner: object, names: str) -> dict[str, Callable[..., Any]]:
    return {f"{prefix}.{name}": getattr(owner, name) for name in names.split()}


ELEMENTWISE = (
    _listed("operator", operator, "add sub mul truediv neg")
    | _listed("torch", torch, "add sub mul div neg abs exp sqrt rsqrt square clamp sigmoid tanh clone")
    | _listed("Tensor", Tensor, "add sub mul div neg abs exp sqrt rsqrt square clamp sigmoid tanh clone relu")
    | _listed("functional", F, "relu relu6 silu gelu mish elu leaky_relu hardswish hardsigmoid hardtanh")
    | _listed("functional", F, "sigmoid tanh softplus")
)
SHAPE_KEEPING = _listed("functional", F, "layer_norm group_norm prelu softmax log_softmax normalize")
OTHERS = (
    _listed("torch", torch, "cat softmax log_softmax mean sum amax")
    | _listed("Tensor", Tensor, "softmax log_softmax mean sum amax")
    | _listed("functional", F, "linear conv_transpose2d pad interpolate avg_pool2d max_pool2d")
    | _listed("functional", F, "adaptive_avg_pool2d adaptive_max_pool2d pixel_shuffle channel_shuffle")
)
VIEWS = (  # their results may share memory with what they were given
    _listed("operator", operator, "getitem eq floordiv")
    | _listed("torch", torch, "flatten chunk split permute transpose reshape squeeze unsqueeze")
    | _listed("Tensor", Tensor, "flatten view reshape chunk split permute transpose contiguous squeeze unsqueeze")
    | _listed("Tensor", Tensor, "expand expand_as size dim")
    | {"to_planes": to_planes}
)
# each operator that changes its left side, and the one that does not
IN_PLACE: dict[Any, Any] = {
    getattr(operator, f"i{function.__name__.rstrip('_')}"): function
    for function in _listed(
        "operator", operator, "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift"
    ).values()
}
FRESH = ELEMENTWISE | SHAPE_KEEPING | OTHERS
STORABLE = FRESH | VIEWS  # what a file may name: nothing in here touches more than the tensors it is given
NAMES = {function: name for name, function in STORABLE.items()}

FUNCTIONS: dict[type[nn.Module], tuple[Any, ...]] = {  # by layer: the function, and the options it has from the layer
    nn.SiLU: (F.silu,),
    nn.GELU: (F.gelu, "approximate"),
    nn.Mish: (F.mish,),
    nn.ELU: (F.elu, "alpha"),
    nn.LeakyReLU: (F.leaky_relu, "negative_slope"),
    nn.Hardswish: (F.hardswish,),
    nn.Hardsigmoid: (F.hardsigmoid,),
    nn.Sigmoid: (torch.sigmoid,),
    nn.Tanh: (torch.tanh,),
    nn.PReLU: (F.prelu, "weight"),
    nn.Softmax: (F.softmax, "dim"),
    nn.LayerNorm: (F.layer_norm, "normalized_shape", "weight", "bias", "eps"),
    nn.GroupNorm: (F.group_norm, "num_groups", "weight", "bias", "eps"),
    nn.Linear: (F.linear, "weight", "bias"),
    nn.ConvTranspose2d: (
        F.conv_transpose2d, "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"
    ),
    nn.Upsample: (F.interpolate, "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor"),
    nn.PixelShuffle: (F.pixel_shuffle, "upscale_factor"),
    nn.Flatten: (torch.flatten, "start_dim", "end_dim"),
    nn.AdaptiveAvgPool2d: (F.adaptive_avg_pool2d, "output_size"),
    nn.AdaptiveMaxPool2d: (F.adaptive_max_pool2d, "output_size", "return_indices"),
    nn.MaxPool2d: (
        F.max_pool2d, "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"
    ),
    nn.AvgPool2d: (
        F.avg_pool2d, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"
    ),
}  # fmt: skip
