"""How large a network out of a file becomes for an image, found without computing: sizes alone, with torch's meta
tensors for what is left to torch. Asked once for each size of image, before anything is allocated."""

import operator
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.node import map_aggregate

from ...errors import UserError
from ..calls import Slot, Together, TorchCall
from ..graph import GIVES_BYTES, ByteConv, BytePool, Concat, Conv, Graph, Pool, Step, Torch, values_read
from .budget import BUDGET, VARIABLE, shown
from .shapes import Shape, as_planes, output_shape, padding_of

LEAST_PIXELS = 1 << 20  # that a value may always have
MOST_TIMES_PIXELS = 64  # how often it may have those of the image
MOST_PARTS = 4096  # tensors that one call gives
MOST_DIMENSIONS = 8
MOST_POOLED = 1 << 32  # numbers that a pooling looks at, each as often as it does
LARGEST_NUMBER = 1 << 40
DTYPES = (torch.float32, torch.uint8)  # of planes


class Refused(Exception):
    """Why a step cannot be computed, in words."""


def check(parts: Iterable[tuple[Graph, list[str]]], name: str, x: Tensor) -> None:
    """A ``UserError`` where a graph of known steps cannot compute an image, or would take more memory than there is.

    ``parts`` are those that run one after the other, each with the values that nobody reads after it; what a part does
    not give to others is in an arena, some images at a time. ``name`` is that of x.
    """
    walk = _Walk(name, x)
    for graph, releases in parts:
        for step in graph.steps:
            try:
                walk.do(step, leaves_the_part=step.output == graph.output)
            except (Refused, UserError) as refused:
                raise UserError(f"{type(step).__name__} {step.output!r} cannot be computed: {refused}") from None
        for released in releases:
            walk.release(released)


class _Walk:
    """Sizes of values, as long as somebody reads them, step by step."""

    def __init__(self, name: str, x: Tensor) -> None:
        self.values: dict[str, Any] = {name: _meta(x)}
        self.most_pixels = max(LEAST_PIXELS, MOST_TIMES_PIXELS * prod(x.shape[2:]))
        self.bytes = 0

    def do(self, step: Step, leaves_the_part: bool) -> None:
        given = [self.values[name] for name in values_read(step)]
        if isinstance(step, Torch):
            assert isinstance(step.function, TorchCall)
            result = _call(step.function, given)
        else:
            result = self._planes(step, given)
        self.values[step.output] = result
        if not leaves_the_part:
            return
        self.bytes += _bytes(result)
        if self.bytes > BUDGET.limit:
            raise Refused(
                f"with it, values take {shown(self.bytes)} and the budget is {shown(BUDGET.limit)}; use smaller "
                f"images, or set {VARIABLE} to more"
            )

    def release(self, name: str) -> None:
        self.bytes -= _bytes(self.values.pop(name))

    def _planes(self, step: Step, given: list[Any]) -> Tensor:
        """The result of a step that native code may compute."""
        batches = set()
        shapes: dict[str, Shape] = {}
        for name, value in zip(values_read(step), given, strict=True):
            if type(value) is not Tensor or value.dtype not in DTYPES or value.dim() not in (2, 4):
                raise Refused(f"{name!r} is not [batch, channels, height, width] in float32, nor [batch, features]")
            batches.add(len(value))
            shapes[name] = tuple(value.shape[1:])
        if len(batches) != 1:
            raise Refused(f"it reads {' and '.join(map(str, sorted(batches)))} images")
        shape = output_shape(step, shapes)
        channels, height, width = as_planes(shape)
        if height * width > self.most_pixels:
            raise Refused(f"its {height} x {width} pixels are over {self.most_pixels}")
        if isinstance(step, Pool | BytePool) and prod(step.kernel) * channels * height * width > MOST_POOLED:
            raise Refused("its windows are too large for so many pixels")
        scratch = _copied(step, shapes) if isinstance(step, Conv | ByteConv) else 0
        if 4 * scratch > BUDGET.limit:
            raise Refused(f"it needs {shown(4 * scratch)} beside its result")
        is_bytes = isinstance(step, GIVES_BYTES) or (isinstance(step, Concat) and given[0].dtype == torch.uint8)
        return _empty((batches.pop(), *shape), torch.uint8 if is_bytes else torch.float32)


def _copied(conv: Conv | ByteConv, shapes: dict[str, Shape]) -> int:
    """Floats of an image with its padding, as torch may copy it."""
    first = (conv.expansion if isinstance(conv, Conv) else None) or conv
    channels, height, width = as_planes(shapes[conv.input])
    down, right = (2 * pad + extra for pad, extra in zip(*padding_of(first, shapes[conv.input]), strict=True))
    return channels * (height + down) * (width + right)


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _empty(shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _bytes(value: Any) -> int:
    """The bytes of a value, as if every view had memory of its own, which somebody may give it."""
    return sum(leaf.numel() * leaf.element_size() for leaf in _leaves(value) if isinstance(leaf, Tensor))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _call(call: TorchCall, given: list[Any]) -> Any:
    """The sizes that a call gives. It is made with tensors that hold nothing, but what it could do to Python's own
    numbers and lists is asked before."""
    args, kwargs = map_aggregate(
        (call.args, call.kwargs),
        lambda leaf: given[leaf.index] if type(leaf) is Slot else _meta(leaf) if isinstance(leaf, Tensor) else leaf,
    )
    if isinstance(call.function, Together):
        return args
    try:
        if guard := GUARDS.get(call.function):
            guard(*args, **kwargs)
        result = call.function(*args, **kwargs)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"torch says: {str(error).partition(chr(10))[0][:300]}") from None
    _refuse_odd(result)
    if call.function in POOLINGS:
        _refuse_pooling(result, *args, **kwargs)
    return result


def _refuse_odd(result: Any) -> None:
    leaves = list(_leaves(result))
    if len(leaves) > MOST_PARTS:
        raise Refused(f"it gives {len(leaves)} results")
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if leaf.dim() > MOST_DIMENSIONS or leaf.layout != torch.strided:
                raise Refused(f"it gives a tensor of {leaf.dim()} dimensions, {leaf.layout}")
        elif type(leaf) is int:
            if abs(leaf) > LARGEST_NUMBER:
                raise Refused(f"it gives the number {leaf}")
        elif leaf is not None and type(leaf) not in (bool, float, str):
            raise Refused(f"it gives a {type(leaf).__name__}")


def _numbers_only(*args: Any, **kwargs: Any) -> None:
    """Python multiplies lists, too."""
    if any(not isinstance(arg, Tensor | int | float) for arg in (*args, *kwargs.values())):
        raise Refused("it computes with something that is no number")


def _short(*args: Any, **kwargs: Any) -> None:
    """Sizes can be joined: each is short, and so is what is made of them."""
    if sum(len(arg) for arg in args if isinstance(arg, tuple | list | str)) > MOST_PARTS:
        raise Refused("it joins lists that are too long")


def _few_parts(x: Any, size: Any, dim: int = 0, **kwargs: Any) -> None:
    """Refuses to cut a tensor into very many: every part is one."""
    if not isinstance(x, Tensor) or not isinstance(dim, int) or not -x.dim() <= dim < x.dim():
        raise Refused("it cuts what is no tensor")
    if isinstance(size, int) and x.shape[dim] > MOST_PARTS * max(1, size):
        raise Refused(f"it cuts {x.shape[dim]} into parts of {size}")


def _few_chunks(x: Any, chunks: Any, dim: int = 0) -> None:
    if not isinstance(chunks, int) or not 1 <= chunks <= MOST_PARTS:
        raise Refused(f"it cuts into {chunks!r} parts")


def _refuse_pooling(result: Any, x: Tensor, kernel_size: Any, *args: Any, **kwargs: Any) -> None:
    sizes = kernel_size if isinstance(kernel_size, tuple | list) else (kernel_size, kernel_size)
    values = result[0] if isinstance(result, tuple) else result
    if values.numel() * prod(sizes) > MOST_POOLED:
        raise Refused("its windows are too large for so many pixels")


def _room_for_columns(x: Any, weight: Any, *args: Any, **kwargs: Any) -> None:
    """Refuses what torch has no room for: of each pixel it makes all that it adds to the result, before it adds it."""
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or x.dim() != 4 or weight.dim() != 4:
        raise Refused("it takes a tensor of four dimensions, and another")
    size = 4 * prod(x.shape[2:]) * prod(weight.shape[1:])
    if size > BUDGET.limit:
        raise Refused(f"it needs {shown(size)} beside its result")


POOLINGS = (F.max_pool2d, F.avg_pool2d)
GUARDS: dict[Callable[..., Any], Callable[..., None]] = {
    **dict.fromkeys((operator.mul, operator.sub, operator.truediv, operator.floordiv, operator.neg), _numbers_only),
    operator.add: _short,
    operator.eq: _short,
    F.conv_transpose2d: _room_for_columns,
    torch.split: _few_parts,
    Tensor.split: _few_parts,
    torch.chunk: _few_chunks,
    Tensor.chunk: _few_chunks,
}
