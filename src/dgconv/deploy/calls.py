"""A call that torch is left to make: the function, and which of its arguments are values of the graph."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.node import map_aggregate


@dataclass(frozen=True)
class Slot:
    """Stands for the value of that number among those a call is given."""

    index: int


@dataclass
class Call:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, *values: Any) -> Any:
        args, kwargs = map_aggregate(
            (self.args, self.kwargs), lambda leaf: values[leaf.index] if isinstance(leaf, Slot) else leaf
        )
        return self.function(*args, **kwargs)


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a step that is left to torch calls in the end."""
    return function.function if isinstance(function, Call) else function


def name_of(function: Callable[..., Any]) -> str:
    function = called(function)
    if isinstance(function, nn.Module):
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
OTHERS = (
    _listed("operator", operator, "getitem eq floordiv")
    | _listed("torch", torch, "flatten cat chunk split softmax log_softmax mean sum amax permute transpose")
    | _listed("torch", torch, "reshape squeeze unsqueeze")
    | _listed("Tensor", Tensor, "flatten view reshape chunk split softmax log_softmax mean sum amax permute")
    | _listed("Tensor", Tensor, "transpose contiguous squeeze unsqueeze size dim")
    | _listed("functional", F, "softmax log_softmax pad normalize interpolate avg_pool2d max_pool2d")
    | _listed("functional", F, "adaptive_avg_pool2d adaptive_max_pool2d pixel_shuffle channel_shuffle")
    | {"to_planes": to_planes}
)
# each operator that changes its left side, and the one that does not
IN_PLACE: dict[Any, Any] = {
    getattr(operator, f"i{name}"): getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow", "matmul")
}
STORABLE = ELEMENTWISE | OTHERS  # what a file may name: nothing in here touches more than the tensors it is given
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
    nn.Softmax: (F.softmax, "dim"),
    nn.Flatten: (torch.flatten, "start_dim", "end_dim"),
    nn.AdaptiveAvgPool2d: (F.adaptive_avg_pool2d, "output_size"),
    nn.MaxPool2d: (
        F.max_pool2d, "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"
    ),
    nn.AvgPool2d: (
        F.avg_pool2d, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"
    ),
}  # fmt: skip
