"""What a prepared network consists of: a short list of steps over named values, each step a fused operation.

:mod:`~dgconv.deploy.prepare` writes it from a model, :mod:`~dgconv.deploy.run.torch_steps` runs it with torch and so
defines what each step means, and :mod:`~dgconv.deploy.run.program` runs it in native code.

A value is planes, [B, C, height, width], or after ``GlobalPool`` or ``Linear`` rows, [B, features], of float32. In a
network of low precision most are planes of unsigned bytes: the steps for those come last, and
:mod:`~dgconv.deploy.run.integer_steps` defines them, to the bit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal, get_args

from torch import Tensor

from ..ops.geometry import Pair

Bound = Literal["identity", "relu", "relu6"]  # what norms and bytes may have
Activation = Literal[Bound, "silu", "hard_swish", "hard_sigmoid", "sigmoid", "tanh", "gelu", "gelu_tanh"]
BOUNDS: tuple[Activation, ...] = get_args(Bound)


@dataclass
class Norm:
    """``activation(x * scale + shift)`` by channel: a batch norm in eval mode and what follows it."""

    scale: Tensor  # [C]
    shift: Tensor  # [C]
    activation: Bound = "identity"


@dataclass
class GateSpec:
    """Generator and gate of a dynamic convolution, as in :mod:`dgconv.layers`.

    With a ``scale`` the weights are int8: ``weight2 @ (scale * relu(weight1 @ p)) + bias``. With a ``fixed`` choice
    each head keeps those channels of every image, and scores no others: C of ``weight2`` and ``bias`` is ``keep``.
    """

    weight1: Tensor  # [H, hidden, C]
    weight2: Tensor  # [H, C, hidden]
    bias: Tensor  # [H, C]
    keep: int | None = None  # head-wise: channels kept
    threshold: float | None = None  # global: smallest abs(saliency) kept
    scale: Tensor | None = None  # [H, hidden]
    fixed: list[list[int]] | None = None  # ascending, for each head


@dataclass
class BoostSpec:
    """Which outputs of a convolution an image computes, and their scale and shift; as in :mod:`dgconv.layers`.

    The saliencies are ``relu(weight @ p + bias)``, p being the means of ``abs(before(x))``; the ``keep`` greatest win.
    """

    weight: Tensor  # [C', C]
    bias: Tensor  # [C']
    keep: int
    shift: Tensor  # [C']


@dataclass
class Conv:
    """``activation(conv(before(x)) + bias + residual)``; padding is zeros after ``before``.

    Dynamic if ``gate`` is given (head h owns output channels h, h+H, ..., H from the gate), else static with
    ``groups``: group g owns a block of output channels or, ``interleaved``, the channels g, g+G, ... as a head does.
    With ``picks`` it is static, too, but cut like a dynamic one: head h reads the channels ``picks[h]`` alone, and its
    weights for all others are zero. With ``boost``, ``conv + bias`` is ``saliency * (conv + bias) + shift`` where an
    output won, and else zero.
    """

    input: str
    output: str
    weight: Tensor  # [C', C / groups, k, k]; folded batch norms are already in
    bias: Tensor | None = None
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)  # top and left
    extra_padding: Pair = (0, 0)  # more at bottom and right
    dilation: Pair = (1, 1)
    groups: int = 1
    gate: GateSpec | None = None
    picks: list[list[int]] | None = None  # ascending
    boost: BoostSpec | None = None  # of one group
    before: Norm | None = None
    residual: str | None = None
    activation: Activation = "identity"
    interleaved: bool = False
    same: bool = False  # padded by what the size of x asks for, as TensorFlow does: see run.shapes.padding_of
    expansion: "Conv | None" = None  # a convolution that comes first, whose result nobody else reads
    label: str = ""  # here and below: the layers of the model that it stands for


@dataclass
class _Pooling:
    """What poolings of floats and of bytes have in common."""

    input: str
    output: str
    kind: Literal["max", "average"]
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)


@dataclass
class Pool(_Pooling):
    """Max or average pooling, as torch's (average: ``count_include_pad``; no ``ceil_mode``, no dilation)."""

    before: Norm | None = None
    label: str = ""


@dataclass
class GlobalPool:
    """Mean over height and width, [B, C, height, width] to [B, C]."""

    input: str
    output: str
    before: Norm | None = None
    label: str = ""


@dataclass
class Linear:
    """``activation(weight @ x + bias)`` of rows; of planes of one pixel, it is a convolution.

    With a ``scale`` the weights are bytes, signed, and those of an output count so many times as much.
    """

    input: str
    output: str
    weight: Tensor  # [C', C]
    bias: Tensor | None = None
    activation: Activation = "identity"
    label: str = ""
    scale: Tensor | None = None  # [C']


@dataclass
class Elementwise:
    """``activation(norm(x) + other)``: what no convolution could take in. With an ``order`` x is ``x[:, order]``.

    Instead of a norm there may be a ``factor``, rows [B, C], that multiplies the channels of x, as in squeeze and
    excitation.
    """

    input: str
    output: str
    norm: Norm | None = None
    other: str | None = None
    activation: Activation = "identity"
    order: list[int] | None = None
    factor: str | None = None
    label: str = ""


@dataclass
class LayerNorm:
    """Each pixel less the mean of its channels, over the root of their variance, times ``scale``, plus ``shift``."""

    input: str
    output: str
    scale: Tensor  # [C]
    shift: Tensor  # [C]
    epsilon: float
    label: str = ""


@dataclass
class Resize:
    """Planes resampled as ``F.interpolate`` does: to a ``size``, by a ``scale``, or to the size of what is ``like``."""

    input: str
    output: str
    kind: Literal["nearest", "bilinear"]
    size: Pair | None = None
    scale: tuple[float, float] | None = None
    like: str | None = None
    aligns_corners: bool = False
    label: str = ""


@dataclass
class Pad:
    """Zeros around planes: so many at the top and left, and at the bottom and right."""

    input: str
    output: str
    padding: Pair
    end_padding: Pair
    label: str = ""


@dataclass
class Slice:
    """So many channels from the first of them on; free where they can be read in place."""

    input: str
    output: str
    first: int
    count: int
    label: str = ""


@dataclass
class Concat:
    """Joins values along the channels; free where each part can be written in place."""

    inputs: list[str]
    output: str
    label: str = ""


@dataclass
class Torch:
    """Anything else, left to torch."""

    inputs: list[str]
    output: str
    function: Callable[..., Any]
    reason: str = ""  # why it is not native, for the user to read
    label: str = ""
    may_change_inputs: bool = False  # code that nobody looked into


@dataclass
class Bytes:
    """How a byte stands for a number: ``scale * (byte - zero)``."""

    scale: float
    zero: int


@dataclass
class Quantize:
    """From floats to bytes."""

    input: str
    output: str
    bytes: Bytes
    label: str = ""


@dataclass
class Dequantize:
    """From bytes to floats."""

    input: str
    output: str
    bytes: Bytes
    label: str = ""


@dataclass
class ByteConv:
    """A :class:`Conv` of bytes to bytes: ``sum * multiplier + bias + residual * residual_scale``, rounded.

    The sum is that of weights and ``byte - given.zero``; ``residual`` are bytes as they are. Numbers of the channels
    are in steps of ``result.scale``, and so is what the activation sees. ``integer_steps`` says what becomes of the
    scores of a gate: they scale the bytes that a head reads or, ``folded``, the weights.
    """

    input: str
    output: str
    weight: Tensor  # int8, [C', C / groups, k, k]
    multiplier: Tensor  # [C']
    bias: Tensor  # [C']
    given: Bytes
    result: Bytes
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    extra_padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    gate: GateSpec | None = None
    picks: list[list[int]] | None = None
    residual: str | None = None
    residual_scale: float = 0.0
    activation: Bound = "identity"
    interleaved: bool = False
    folded: bool = False  # it changes the last bits, and so is not for each CPU to decide
    label: str = ""


@dataclass
class BytePool(_Pooling):
    """Max pooling of bytes; or average, rounded, in which the padding is ``zero``."""

    zero: int = 0
    label: str = ""


@dataclass
class ByteMean:
    """A :class:`GlobalPool` of bytes, whose rows are floats."""

    input: str
    output: str
    bytes: Bytes
    label: str = ""


@dataclass
class Rescale:
    """``byte * scale + shift + other * other_scale`` by channel, rounded to ``result``: a norm, an addition, or both.

    With an ``order`` the bytes are ``bytes[:, order]``.
    """

    input: str
    output: str
    scale: Tensor  # [C]
    shift: Tensor  # [C]
    result: Bytes
    other: str | None = None
    other_scale: float = 0.0
    activation: Bound = "identity"
    order: list[int] | None = None
    label: str = ""


@dataclass
class ByteTable:
    """Any function of one number: ``table[byte]``, 256 bytes. An activation that is no pair of bounds."""

    input: str
    output: str
    table: list[int]
    label: str = ""


ByteStep = Quantize | Dequantize | ByteConv | BytePool | ByteMean | Rescale | ByteTable
BYTE_STEPS = (Quantize, Dequantize, ByteConv, BytePool, ByteMean, Rescale, ByteTable)
GIVES_BYTES = (Quantize, ByteConv, BytePool, Rescale, ByteTable)
FloatStep = Conv | Pool | GlobalPool | Linear | Elementwise | LayerNorm | Resize | Pad | Slice
Step = FloatStep | Concat | Torch | ByteStep


VALUES = ("input", "residual", "other", "factor", "like")  # fields of steps that name a value to be read


def values_read(step: Step) -> list[str]:
    """Every value that a step reads, as often as it does."""
    if isinstance(step, Concat | Torch):
        return list(step.inputs)
    return [name for field in VALUES if (name := getattr(step, field, None)) is not None]


def reading(step: Step, names: dict[str, str]) -> Step:
    """The same step, reading values of other names."""
    if isinstance(step, Concat | Torch):
        return replace(step, inputs=[names[name] for name in step.inputs])
    fields = {field: getattr(step, field, None) for field in VALUES}
    changed: dict[str, Any] = {field: names[name] for field, name in fields.items() if name is not None}
    return replace(step, **changed)


def is_activation(step: Step) -> bool:
    """Whether it is a function of each number by itself, whatever the channel."""
    return isinstance(step, Elementwise) and not any((step.norm, step.other, step.factor, step.order))


def activated_apart(step: Step) -> Iterator[Step]:
    """A convolution, norm or addition whose activation is no pair of bounds, and then that by itself; any other step as
    it is."""
    if not isinstance(step, Conv | Elementwise) or step.activation in BOUNDS or is_activation(step):
        yield step
        return
    name = f"{step.output} before its activation"
    yield replace(step, output=name, activation="identity")
    yield Elementwise(name, step.output, activation=step.activation, label=step.label)


def tensors_of(record: Any) -> Iterator[Tensor]:
    """The tensors that a graph, a step or a part of one holds."""
    for value in vars(record).values():
        if isinstance(value, Tensor):
            yield value
        for part in value if isinstance(value, list) else (value,):
            if is_dataclass(part):
                yield from tensors_of(part)


@dataclass
class Graph:
    """Steps in order; ``input`` is the network's image tensor, ``output`` its result. With a ``size`` it is made for
    images of that height and width alone."""

    input: str
    output: str
    steps: list[Step] = field(default_factory=list)
    size: Pair | None = None


def byte_values(graph: Graph) -> set[str]:
    """The values that are bytes. A concatenation is what its first part is."""
    found: set[str] = set()
    for step in graph.steps:
        if isinstance(step, GIVES_BYTES) or (isinstance(step, Concat) and step.inputs and step.inputs[0] in found):
            found.add(step.output)
    return found
