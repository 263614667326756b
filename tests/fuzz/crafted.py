"""Networks made by hand to do harm, each with the image that it is called with. All of them once did."""

from collections.abc import Callable
from typing import Any

import torch

from tests.fuzz.graphs import Json, Stored, boost, call, conv, gate, graph, listed, norm, pair, slot

HEADS, CHANNELS = 4, 64
CASES: dict[str, Callable[[], Stored]] = {}


def case(make: Callable[[], Stored]) -> Callable[[], Stored]:
    CASES[make.__name__] = make
    return make


def network(steps: list[Json], shape: tuple[int, ...], **sizes: Any) -> Stored:
    """With random tensors of these names and sizes."""
    generator = torch.Generator().manual_seed(0)
    return Stored(graph(steps), {name: torch.randn(size, generator=generator) for name, size in sizes.items()}, shape)


def gate_sizes(heads: int = HEADS, channels: int = CHANNELS, hidden: int = 4) -> dict[str, tuple[int, ...]]:
    return {"a": (heads, hidden, channels), "b": (heads, channels, hidden), "c": (heads, channels)}


def same(number: int) -> Json:
    return pair(number, number)


@case
def stride_2p32_depthwise() -> Stored:
    steps = [conv("x", "y", "w", groups=16, stride=same(2**32), padding=same(1))]
    return network(steps, (1, 16, 8, 8), w=(16, 1, 3, 3))


@case
def stride_2p32_dense() -> Stored:
    return network([conv("x", "y", "w", stride=same(2**32), padding=same(1))], (1, 16, 8, 8), w=(16, 16, 3, 3))


def pool(kernel: Json, stride: Json, padding: Json) -> Json:
    sizes = {"kernel": kernel, "stride": stride, "padding": padding}
    return {"type": "Pool", "input": "x", "output": "y", "kind": "max", **sizes}


@case
def pool_kernel_2p32_pad_2p31() -> Stored:
    return network([pool(same(2**32), same(1), same(2**31))], (1, 4, 8, 8), w=(1,))


@case
def pool_kernel_2p32p3() -> Stored:
    return network([pool(pair(2**32 + 3, 3), pair(2**32, 1), pair(2**31 + 1, 1))], (1, 4, 8, 8), w=(1,))


@case
def dilation_2p31_pad_2p31() -> Stored:
    return network([conv("x", "y", "w", dilation=same(2**31), padding=same(2**31))], (1, 4, 8, 8), w=(16, 4, 3, 3))


@case
def dilation_2p30_pad_2p30() -> Stored:
    return network([conv("x", "y", "w", dilation=same(2**30), padding=same(2**30))], (1, 4, 8, 8), w=(16, 4, 3, 3))


@case
def dilation_w_2p30_only() -> Stored:
    step = conv("x", "y", "w", dilation=pair(1, 2**30), padding=pair(1, 2**30))
    return network([step], (1, 4, 8, 8), w=(16, 4, 3, 3))


@case
def order_with_short_norm() -> Stored:
    order = listed(*range(4000))
    step = {"type": "Elementwise", "input": "x", "output": "y", "norm": norm("s", "s"), "order": order}
    return network([step], (1, 4000, 2, 2), s=(1,))


@case
def norm_scale_2d_empty() -> Stored:
    step = {"type": "GlobalPool", "input": "x", "output": "y", "before": norm("s", "t")}
    return network([step], (1, 4000, 2, 2), s=(4000, 0), t=(4000,))


@case
def gate_with_groups() -> Stored:
    step = conv("x", "y", "w", groups=HEADS, gate=gate("a", "b", "c", keep=8))
    return network([step], (1, CHANNELS, 8, 8), w=(64, CHANNELS // HEADS, 1, 1), **gate_sizes())


@case
def gate_with_groups_big() -> Stored:
    heads, channels = 64, 4096
    step = conv("x", "y", "w", groups=heads, gate=gate("a", "b", "c", keep=8))
    sizes = gate_sizes(heads, channels, hidden=1)
    return network([step], (1, channels, 8, 8), w=(4096, channels // heads, 1, 1), **sizes)


@case
def picks_with_groups() -> Stored:
    picks = listed(*[listed(*range(64)) for _ in range(HEADS)])
    step = conv("x", "y", "w", groups=HEADS, picks=picks)
    return network([step], (2, CHANNELS, 8, 8), w=(64, CHANNELS // HEADS, 1, 1))


@case
def gate_and_picks() -> Stored:
    step = conv("x", "y", "w", gate=gate("a", "b", "c", keep=8), picks=listed(listed(1, 2, 3)))
    return network([step], (2, CHANNELS, 8, 8), w=(64, CHANNELS, 1, 1), **gate_sizes(heads=16))


@case
def gate_and_boost() -> Stored:
    step = conv("x", "y", "w", gate=gate("a", "b", "c", keep=8), boost=boost("bw", "bb", "bb", 3))
    return network([step], (1, CHANNELS, 8, 8), w=(64, CHANNELS, 1, 1), bw=(64, 64), bb=(64,), **gate_sizes())


@case
def boost_and_picks() -> Stored:
    step = conv("x", "y", "w", picks=listed(listed(1, 2)), boost=boost("bw", "bb", "bb", 3))
    return network([step], (1, CHANNELS, 8, 8), w=(64, CHANNELS, 1, 1), bw=(64, 64), bb=(64,))


@case
def expansion_and_gate() -> Stored:
    step = conv("x", "y", "w", gate=gate("a", "b", "c", keep=60), expansion=conv("x", "m", "e"))
    return network([step], (1, 1, 64, 64), e=(CHANNELS, 1, 1, 1), w=(64, CHANNELS, 1, 1), **gate_sizes())


@case
def expansion_of_a_dense_conv() -> Stored:
    step = conv("x", "y", "w", expansion=conv("x", "m", "e"), padding=same(1))
    return network([step], (1, 4, 8, 8), e=(16, 4, 1, 1), w=(64, 16, 3, 3))


def depthwise(expansion: Json, **fields: Any) -> Json:
    return conv("x", "y", "w", expansion=expansion, groups=32, **({"padding": same(1)} | fields))


@case
def expansion_grouped() -> Stored:
    return network([depthwise(conv("x", "m", "e", groups=4))], (1, 32, 8, 8), e=(32, 8, 1, 1), w=(32, 1, 3, 3))


@case
def expansion_dynamic() -> Stored:
    step = depthwise(conv("x", "m", "e", gate=gate("a", "b", "c", keep=8)))
    return network([step], (1, 32, 8, 8), e=(32, 32, 1, 1), w=(32, 1, 3, 3), **gate_sizes(channels=32))


@case
def expansion_stride3() -> Stored:
    return network([depthwise(conv("x", "m", "e", stride=same(3)))], (1, 4, 30, 30), e=(32, 4, 1, 1), w=(32, 1, 3, 3))


@case
def expansion_of_1x1_depthwise() -> Stored:
    step = depthwise(conv("x", "m", "e"), padding=same(0))
    return network([step], (1, 4, 30, 30), e=(32, 4, 1, 1), w=(32, 1, 1, 1))


@case
def expansion_of_depthwise_dilated() -> Stored:
    step = depthwise(conv("x", "m", "e"), dilation=same(9), padding=same(9))
    return network([step], (1, 4, 30, 30), e=(32, 4, 1, 1), w=(32, 1, 3, 3))


@case
def expansion_with_winograd() -> Stored:
    step = depthwise(conv("x", "m", "e", padding=same(1)))
    return network([step], (1, 16, 30, 30), e=(32, 16, 3, 3), w=(32, 1, 3, 3))


@case
def expansion_residual_dropped() -> Stored:
    return network([depthwise(conv("x", "m", "e"), residual="x")], (1, 32, 8, 8), e=(32, 32, 1, 1), w=(32, 1, 3, 3))


def written_twice() -> list[Json]:
    return [conv("x", "a", "w1"), conv("a", "b", "w2"), conv("b", "a", "w3"), conv("a", "y", "w4")]


@case
def same_output_twice_big_then_small() -> Stored:
    sizes = {"w1": (512, 4, 1, 1), "w2": (4, 512, 1, 1), "w3": (1, 4, 1, 1), "w4": (4, 1, 1, 1)}
    return network(written_twice(), (1, 4, 64, 64), **sizes)


@case
def two_step_heap_write() -> Stored:
    sizes = {"w1": (64, 1, 1, 1), "w2": (1, 64, 1, 1), "w3": (1, 1, 1, 1), "w4": (1, 1, 1, 1)}
    return network(written_twice(), (1, 1, 256, 256), **sizes)


@case
def writes_over_its_input() -> Stored:
    return network([conv("x", "x", "w"), conv("x", "y", "v")], (1, 4, 8, 8), w=(4, 4, 1, 1), v=(4, 4, 1, 1))


@case
def writes_over_its_input_larger() -> Stored:
    sizes = {"w": (4096, 4, 1, 1), "v": (4, 4096, 1, 1)}
    return network([conv("x", "x", "w"), conv("x", "y", "v")], (1, 4, 64, 64), **sizes)


@case
def output_is_input() -> Stored:
    return network([conv("x", "a", "w")], (1, 4, 8, 8), w=(4, 4, 1, 1))


@case
def no_steps() -> Stored:
    return network([], (1, 4, 8, 8), w=(1,))


def dynamic(keep: int) -> Stored:
    step = conv("x", "y", "w", gate=gate("a", "b", "c", keep=keep))
    return network([step], (1, CHANNELS, 8, 8), w=(64, CHANNELS, 1, 1), **gate_sizes())


@case
def keep_negative() -> Stored:
    return dynamic(-5)


@case
def keep_2p31() -> Stored:
    return dynamic(2**31)


@case
def keep_2p40() -> Stored:
    return dynamic(2**40)


@case
def keep_2p31_boost() -> Stored:
    step = conv("x", "y", "w", boost=boost("bw", "bb", "bb", 2**31))
    return network([step], (1, CHANNELS, 8, 8), w=(64, CHANNELS, 1, 1), bw=(64, 64), bb=(64,))


@case
def concat_with_itself_cycle() -> Stored:
    joined = {"type": "Concat", "inputs": listed("a", "a", "x"), "output": "a"}
    steps = [conv("x", "a", "w"), joined, conv("a", "y", "v")]
    return network(steps, (1, 4, 8, 8), w=(4, 4, 1, 1), v=(4, 12, 1, 1))


@case
def conv_pad_huge() -> Stored:
    return network([conv("x", "y", "w", padding=same(100000))], (1, 4, 8, 8), w=(16, 4, 3, 3))


@case
def conv_pad_2p30_w() -> Stored:
    return network([conv("x", "y", "w", padding=pair(0, 2**30))], (1, 4, 1, 8), w=(1, 4, 1, 1))


@case
def conv_extra_pad_30000() -> Stored:
    return network([conv("x", "y", "w", extra_padding=same(30000))], (1, 4, 1, 8), w=(1, 4, 1, 1))


@case
def deep_json() -> Stored:
    return Stored("[" * 100_000, {"w": torch.zeros(1)}, (1, 4, 8, 8))


@case
def torch_mul_bomb() -> Stored:
    return network([call(["x"], "y", "operator.mul", listed(0), 10**11)], (1, 4, 8, 8), w=(1,))


@case
def torch_interpolate_bomb() -> Stored:
    return network([call(["x"], "y", "functional.interpolate", slot(0), same(60000))], (1, 4, 8, 8), w=(1,))


@case
def torch_add_out() -> Stored:
    return network([call(["x"], "y", "torch.add", slot(0), 1, out=slot(0))], (1, 4, 8, 8), w=(1,))


@case
def expand_overlap_native() -> Stored:
    steps = [call(["x"], "e", "Tensor.expand", slot(0), 1, 4, 100000, 100000), conv("e", "y", "w")]
    return network(steps, (1, 4, 1, 1), w=(4, 4, 1, 1))
