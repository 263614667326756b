"""What a rule has at hand while it writes steps: the values so far, and what is known of their shapes."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from ...ops.geometry import Pair
from ..calls import Slot, TorchCall, to_planes
from ..graph import Activation, Conv, Elementwise, GlobalPool, Norm, Pool, Step, Torch

ONE_PIXEL = ("one pixel",)


@dataclass(frozen=True)
class Grid:
    """How many images there are, and how large: as many as a value that came before has, and what happened since."""

    batch: str  # the value
    changes: tuple[str, ...] = ()

    def then(self, change: str) -> "Grid":
        return replace(self, changes=(*self.changes, change))

    def of_one_pixel(self) -> "Grid":
        return replace(self, changes=ONE_PIXEL)


@dataclass(frozen=True)
class Value:
    """A value of the graph. No image was seen yet, so its height and width are unknown.

    ``kind``: planes are [B, C, height, width], rows [B, features]; a shape, and a batch size, are what they say.
    ``grid``: planes of the same grid can be added; what a broadcast might be hiding in is left to torch.
    ``rows``: the same numbers as [B, C], for planes of one pixel.
    """

    name: str
    kind: Literal["planes", "rows", "shape", "batch size", "other"] = "other"
    channels: int | None = None
    grid: Grid | None = None
    rows: str | None = None


class NotNative(Exception):
    """No native step does this; ``like`` is what torch's result will be, if known."""

    def __init__(self, reason: str, like: Value | None = None) -> None:
        super().__init__(reason)
        self.reason, self.like = reason, like


class Builder:
    """Collects the steps. ``label`` says which layer of the model is being translated."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.label = ""
        self._names: set[str] = set()
        self._channels: dict[str, int] = {}  # of values that nobody knew before a convolution read them

    def new_name(self, wish: str) -> str:
        name, count = wish, 1
        while name in self._names:
            count += 1
            name = f"{wish}_{count}"
        self._names.add(name)
        return name

    def add(self, step: Step) -> str:
        """Append a step; its output is named after the layer."""
        step.label = self.label
        step.output = self.new_name(self.label)
        self.steps.append(step)
        return step.output

    def elementwise(
        self, x: Value, norm: Norm | None = None, other: Value | None = None, activation: Activation = "identity"
    ) -> Value:
        step = Elementwise(x.name, "", norm, other.name if other else None, activation)
        channels = len(norm.scale) if norm else x.channels
        return Value(self.add(step), x.kind, channels, x.grid)

    def window(self, x: Value, step: Conv | Pool) -> Value:
        """A convolution or pooling, which reads x."""
        if isinstance(step, Conv) and x.channels is None:
            self._channels[x.name] = step.weight.shape[1] * step.groups
        return replace(after_window(x, step), name=self.add(step))

    def channels(self, x: Value) -> int | None:
        return self._channels.get(x.name) if x.channels is None else x.channels

    def global_pool(self, x: Value, as_planes: bool) -> Value:
        assert x.grid is not None
        rows = Value(self.add(GlobalPool(x.name, "")), "rows", x.channels, x.grid.of_one_pixel())
        if not as_planes:
            return rows
        name = self.add(
            Torch([rows.name], "", TorchCall(to_planes, (Slot(0),), {}), "the same numbers in another shape")
        )
        return replace(rows, name=name, kind="planes", rows=rows.name)


def after_window(x: Value, step: Conv | Pool) -> Value:
    """What a convolution or pooling of x gives, but for the name."""
    assert x.grid is not None
    if isinstance(step, Pool):
        return Value("", "planes", x.channels, _moved(x.grid, step.kernel, step.stride, step.padding))
    outputs, _, height, width = step.weight.shape
    down, right = step.extra_padding
    reach = (step.dilation[0] * (height - 1) + 1 - down, step.dilation[1] * (width - 1) + 1 - right)
    return Value("", "planes", outputs, _moved(x.grid, reach, step.stride, step.padding))


def _moved(grid: Grid, reach: Pair, stride: Pair, padding: Pair) -> Grid:
    """The grid after windows of this reach. What equal strides make of a grid is taken for equal. Where it is not, an
    addition is refused when it runs; torch would refuse it too, unless one of the two is a single pixel."""
    if stride != (1, 1):
        return grid.then(f"stride {stride}")
    lost = (reach[0] - 1 - 2 * padding[0], reach[1] - 1 - 2 * padding[1])
    return grid.then(f"less {lost}") if any(lost) else grid


def planes(x: Any) -> Value:
    """The input of a layer that takes nothing but planes."""
    if not isinstance(x, Value):
        raise NotNative("its input is not a tensor of the network")
    if x.kind not in ("planes", "other"):
        raise NotNative("its input is not an image")
    return x if x.kind == "planes" else replace(x, kind="planes", grid=Grid(x.name))


def known(x: Any) -> Value:
    """The input of a function that takes any shape: the native one must know it."""
    if not isinstance(x, Value) or x.kind not in ("planes", "rows"):
        raise NotNative("the shape of its input is not known beforehand")
    return x


def same_grid(values: list[Value]) -> bool:
    return all(value.kind == "planes" and value.grid == values[0].grid for value in values)


def broadcast(values: list[Value]) -> Value | None:
    """What an elementwise function of these gives, but for the name; None if that is not known."""
    kinds, channels = {value.kind for value in values}, {value.channels for value in values}
    grids = {value.grid for value in values if value.grid is not None}
    larger = {grid for grid in grids if grid.changes != ONE_PIXEL}
    if kinds not in ({"planes"}, {"rows"}) or len({grid.batch for grid in grids}) > 1 or len(larger) > 1:
        return None
    grid = next(iter(larger or grids), None)
    return Value("", values[0].kind, channels.pop() if len(channels) == 1 else None, grid)


def has_forward_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
