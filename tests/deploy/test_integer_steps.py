"""Networks of bytes: every instruction set equals the integer reference to the bit."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from threading import Thread

import pytest
import torch
from torch import Tensor

from dgconv.deploy.compile.calibrate import gate_of_bytes, rounded_gate
from dgconv.deploy.graph import ByteConv, ByteMean, BytePool, Bytes, GateSpec, Graph, Quantize, Rescale
from dgconv.deploy.rules import problem
from dgconv.deploy.run import integer_steps, torch_steps
from dgconv.deploy.run.prepared import PreparedModel
from dgconv.deploy.storage import from_bytes, to_bytes
from dgconv.ops import native
from tests.deploy.byte_networks import Builder, expected, native_select, random_network
from tests.deploy.tile_networks import tile_networks

NETWORKS = 60


@pytest.fixture(params=native.ISAS)
def any_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.isa()
    if not native.available() or not native.library().dgconv_select_isa(request.param.encode()):
        pytest.skip(f"this CPU lacks {request.param}, or there are no native kernels")
    yield request.param
    native.library().dgconv_select_isa(before.encode())


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_random_networks_equal_the_reference(any_isa: str) -> None:
    for number in range(NETWORKS):
        graph, x = random_network(Random(f"{number}"))
        model = PreparedModel(graph)
        assert not model.report().left
        assert same_bits(model(x), expected(graph, x)), number


def test_networks_made_for_tiles_equal_the_reference(any_isa: str) -> None:
    for number, (graph, x) in enumerate(tile_networks()):
        assert same_bits(PreparedModel(graph)(x), expected(graph, x)), number


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_emulated_tiles_equal_the_reference() -> None:
    """Where there is no AMX, plain code takes its place; where there is no AVX-512, in place of that, too."""
    has_avx512 = native.isa() in ("avx512_amx", "avx512_vbmi2")
    command = [sys.executable, "-m", "tests.deploy.emulated_tiles", *([] if has_avx512 else ["--plain"])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_results_do_not_depend_on_threads() -> None:
    if not native.available():
        pytest.skip("no native kernels")
    before = torch.get_num_threads()
    try:
        for number in range(30):
            graph, x = random_network(Random(f"threads {number}"))
            results = []
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                results.append(PreparedModel(graph)(x))
            assert same_bits(results[0], results[1]), number
            assert same_bits(results[0], results[2]), number
    finally:
        torch.set_num_threads(before)


def test_many_threads_share_a_network_whose_choices_change() -> None:
    if not native.available():
        pytest.skip("no native kernels")
    rng = Random("shared")
    graphs = (random_network(rng)[0] for _ in range(1000))
    graph = next(graph for graph in graphs if any(isinstance(s, ByteConv) and s.gate for s in graph.steps[1:3]))
    model, channels = PreparedModel(graph), graph.steps[1].weight.shape[1]  # type: ignore[union-attr]
    images = [3 * torch.randn(b, channels, size, size + 1) for size in (9, 13) for b in (1, 3)] * 3
    wanted = [expected(graph, x) for x in images]
    wrong: list[int] = []

    def call(offset: int) -> None:
        for turn in range(40):
            index = (offset + turn) % len(images)
            if not same_bits(model(images[index]), wanted[index]):
                wrong.append(index)

    threads = [Thread(target=call, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_networks_of_bytes_are_stored_as_they_are() -> None:
    for number in range(20):
        graph, x = random_network(Random(f"stored {number}"))
        if any(getattr(step, "picks", None) is not None and not all(step.picks) for step in graph.steps):  # type: ignore[union-attr]
            continue
        model = PreparedModel(graph)
        assert torch.equal(from_bytes(*to_bytes(model))(x).nan_to_num(), model(x).nan_to_num())


@pytest.mark.parametrize("outputs", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    ("inputs", "groups", "heads"), [(8, 4, 4), (16, 4, 4), (5, 3, 1), (4, 8, 2), (32, 4, 8), (1, 6, 3)]
)
@pytest.mark.parametrize("width", [3, 8, 21])
def test_groups_that_share_a_vector(
    outputs: int, inputs: int, groups: int, heads: int, width: int, any_isa: str
) -> None:
    """Narrow groups behind heads: what a group reads lies in several places of a pixel."""
    rng, channels = torch.Generator().manual_seed(outputs * inputs), inputs * groups
    bytes = Bytes(0.1, 7)
    pointwise = torch.randint(-127, 128, (channels, 3, 1, 1), generator=rng).to(torch.int8)
    grouped = torch.randint(-127, 128, (outputs * groups, inputs, 3, 2), generator=rng).to(torch.int8)
    ones, zeros = torch.full((channels,), 0.01), torch.zeros(channels)
    multiplier, bias = torch.full((outputs * groups,), 0.003), torch.randn(outputs * groups, generator=rng) * 30
    steps = [
        Quantize("x", "a", bytes),
        ByteConv("a", "b", pointwise, ones, zeros, bytes, bytes, picks=[[0, 1, 2]] * heads),
        ByteConv("b", "c", grouped, multiplier, bias, bytes, bytes, (1, 2), (1, 1), (0, 1), (2, 1), groups=groups),
        integer_steps.Dequantize("c", "y", bytes),
    ]
    graph, x = Graph("x", "y", steps), torch.randn(2, 3, 5, width, generator=rng)
    assert same_bits(PreparedModel(graph)(x), expected(graph, x))


@pytest.mark.parametrize("channels", [31, 32, 96])
@pytest.mark.parametrize("size", [(1, 1), (5, 62), (3, 125)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_depthwise_rows_of_any_length(channels: int, size: tuple[int, int], with_residual: bool, any_isa: str) -> None:
    """Of 32 channels two pixels are taken at a time; rows are cut where a buffer ends."""
    rng = torch.Generator().manual_seed(channels + size[1])
    given, bytes = Bytes(0.02, 100), Bytes(0.5, 31)
    numbers = torch.full((channels,), 0.01), torch.randn(channels, generator=rng) * 30
    for kernel, stride, dilation, padding, extra in (
        *(((3, 3), (1, 1), (1, 1), (1, 1), (0, 0)), ((3, 3), (2, 2), (1, 1), (1, 1), (0, 1))),
        *(((2, 3), (1, 1), (1, 2), (1, 2), (1, 0)), ((4, 5), (1, 1), (1, 1), (2, 2), (0, 0))),
    ):
        weight = torch.randint(-127, 128, (channels, 1, *kernel), generator=rng).to(torch.int8)
        conv = ByteConv("a", "b", weight, *numbers, given, bytes, stride, padding, extra, dilation, groups=channels)
        if with_residual and (stride, kernel) == ((1, 1), (3, 3)):
            conv.residual, conv.residual_scale = "a", -0.3
        graph = Graph("x", "y", [Quantize("x", "a", given), conv, integer_steps.Dequantize("b", "y", bytes)])
        x = torch.randn(2, channels, *size, generator=rng)
        assert same_bits(PreparedModel(graph)(x), expected(graph, x)), (kernel, stride)


@pytest.mark.parametrize("channels", [17, 63, 64, 65, 100, 127, 128, 129])
@pytest.mark.parametrize("keep", [1, 16, 31, 32, 33, 63, 64, 65, None])
def test_kept_channels_of_every_number(channels: int, keep: int | None, any_isa: str) -> None:
    rng = torch.Generator().manual_seed(channels)
    keep = min(keep or channels, channels)
    weights = [torch.randn(shape, generator=rng) for shape in ((2, 3, channels), (2, channels, 3))]
    gate = GateSpec(*weights, torch.rand(2, channels, generator=rng), keep=keep)
    weight = torch.randint(-127, 128, (10, channels, 1, 1), generator=rng).to(torch.int8)
    given, bytes = Bytes(0.02, 100), Bytes(0.5, 128)
    conv = ByteConv("a", "b", weight, torch.full((10,), 0.001), torch.zeros(10), given, bytes, gate=gate)
    graph = Graph("x", "y", [Quantize("x", "a", given), conv, integer_steps.Dequantize("b", "y", bytes)])
    x = torch.randn(2, channels, 3, 9, generator=rng)
    assert same_bits(PreparedModel(graph)(x), expected(graph, x))


@pytest.mark.parametrize("outputs", [1, 2, 3, 5, 8, 16, 17, 40])
@pytest.mark.parametrize("heads", [1, 3, 4, 11])
@pytest.mark.parametrize(("channels", "kernel"), [(5, 3), (16, 1), (66, 1)])
def test_gates_go_into_weights_of_heads_of_every_width(
    channels: int, kernel: int, heads: int, outputs: int, any_isa: str
) -> None:
    """What a vector holds is of one head or of many; a group of channels belongs to one tap or to two."""
    rng = torch.Generator().manual_seed(channels * outputs + heads)
    weights = [torch.randn(shape, generator=rng) for shape in ((heads, 3, channels), (heads, channels, 3))]
    gate = GateSpec(*weights, torch.randn(heads, channels, generator=rng), threshold=0.2)  # of both signs
    weight = torch.randint(-127, 128, (heads * outputs, channels, kernel, kernel), generator=rng).to(torch.int8)
    numbers = torch.full((heads * outputs,), 0.001), torch.randn(heads * outputs, generator=rng)
    given, bytes, padding = Bytes(0.02, 100), Bytes(0.5, 128), (kernel // 2, kernel // 2)
    conv = ByteConv("a", "b", weight, *numbers, given, bytes, padding=padding, gate=gate, folded=True)
    graph = Graph("x", "y", [Quantize("x", "a", given), conv, integer_steps.Dequantize("b", "y", bytes)])
    model, x = PreparedModel(graph), torch.randn(2, channels, 5, 9, generator=rng)
    wanted = expected(graph, x)
    assert wanted.std() > 0
    assert same_bits(model(x), wanted)
    assert len(model.time_by_step(x)) > 3
    assert same_bits(model(x.flip(0)), wanted.flip(0))


def test_gates_in_weights_round_as_said() -> None:
    """By hand: half of 3 and of -3 is 2 and -1, what is left out has no weight, and signs go to the weights."""
    gate = GateSpec(torch.zeros(1, 1, 4), torch.zeros(1, 4, 1), torch.tensor([[2.0, 1.0, -1.0, 0.1]]), threshold=0.5)
    weight = torch.tensor([[[[127]], [[3]], [[3]], [[5]]]], dtype=torch.int8)
    one, bytes = torch.ones(1), Bytes(1.0, 100)
    conv = ByteConv("a", "b", weight, one / 2, 0 * one, Bytes(1.0, 1), bytes, gate=gate, folded=True)
    sums = []
    for channel in range(4):
        x = torch.ones(1, 4, 1, 1, dtype=torch.uint8)
        x[0, channel] = 2
        sums.append(int(integer_steps.conv(conv, x, None, torch_steps.select).item()) - 100)
    assert sums == [127, 2, -1, 0]  # the unit is that of the greatest, 2, and half of it is taken


def test_rounding_and_saturation() -> None:
    """By hand: ties go to even, the ends of the range hold, a clamp at 6 is in steps of the scale."""
    v = torch.tensor([-3.0, -0.5, 0.5, 1.5, 2.5, 300.0, float("nan")])
    assert integer_steps.to_bytes(v, Bytes(1.0, 2), "identity").tolist() == [0, 2, 2, 4, 4, 255, 0]
    assert integer_steps.to_bytes(v, Bytes(1.0, 2), "relu").tolist() == [2, 2, 2, 4, 4, 255, 2]
    assert integer_steps.to_bytes(v * 4, Bytes(0.5, 0), "relu6").tolist() == [0, 0, 2, 6, 10, 12, 0]


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_more_than_32_bits(threads: int, any_isa: str) -> None:
    side, ones, given = 2910, torch.ones(1, 1, 1), Bytes(1.0, 0)  # of bytes that are all 255
    x = torch.full((1, 1, side, side), 255.0)
    gate = GateSpec(ones, ones, torch.zeros(1, 1), keep=1)
    conv = ByteConv(
        "a", "b", torch.ones(1, 1, 1, 1, dtype=torch.int8), torch.ones(1) * 1e-3, torch.zeros(1), given, given
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        mean = PreparedModel(Graph("x", "m", [Quantize("x", "a", given), ByteMean("a", "m", given)]))(x)
        steps = [Quantize("x", "a", given), replace(conv, gate=gate), ByteMean("b", "m", given)]
        scaled = PreparedModel(Graph("x", "m", steps))(x)
    finally:
        torch.set_num_threads(before)
    assert mean.item() == pytest.approx(255)
    assert scaled.item() == pytest.approx(round(255 * 255 * 1e-3))
    assert "a window of bytes" in str(problem(BytePool("a", "b", "average", (4096, 4096), (1, 1))))


def test_what_heads_wrote_is_added_to_what_lies_otherwise() -> None:
    """A sum of values whose channels lie in different orders: one is copied into the order of the other."""
    builder = Builder(Random(3))
    builder.shape = (6, 5, 5)
    bytes = Bytes(0.1, 3)
    weight = torch.randint(-9, 9, (6, 6, 1, 1), generator=builder.generator).to(torch.int8)
    ones, zeros = torch.full((6,), 0.1), torch.zeros(6)
    picks = [[0, 1, 2, 3, 4, 5]]
    steps = [
        Quantize("x", "a", bytes),
        ByteConv("a", "two", weight, ones, zeros, bytes, bytes, picks=picks * 2),
        ByteConv("a", "three", weight, ones, zeros, bytes, bytes, picks=picks * 3, residual="two", residual_scale=0.5),
        Rescale("three", "y'", ones, zeros, bytes, other="two", other_scale=0.7, order=[5, 4, 3, 2, 1, 0]),
        integer_steps.Dequantize("y'", "y", bytes),
    ]
    graph, x = Graph("x", "y", steps), torch.randn(2, 6, 5, 5)
    assert same_bits(PreparedModel(graph)(x), expected(graph, x))


@pytest.mark.parametrize("channels", [3, 16, 45, 128])
def test_generators_of_bytes_score_as_in_torch(channels: int, any_isa: str) -> None:
    generator = torch.Generator().manual_seed(channels)
    shapes = (4, 9, channels), (4, channels, 9)
    gate = GateSpec(*(torch.randn(shape, generator=generator) for shape in shapes), torch.ones(4, channels), keep=2)
    bytes, means = rounded_gate(gate), torch.rand(3, channels, generator=generator)
    expected, floats = (torch_steps.select(form, means)[0] for form in (bytes, gate))
    torch.testing.assert_close(native_select(bytes, means)[0], expected, rtol=1e-4, atol=1e-4 * float(expected.max()))
    assert (expected - floats).square().mean().sqrt() < 0.02 * floats.std()


def test_generators_of_bytes_choose_as_before() -> None:
    """Where scores hardly differ, rounding would decide: what it takes on average is put back."""
    generator = torch.Generator().manual_seed(0)
    shapes = (4, 6, 40), (4, 40, 6)
    weights = [torch.randn(shape, generator=generator) for shape in shapes]
    means = 1 + 1e-3 * torch.rand(64, 40, generator=generator)
    hidden = torch.einsum("hdc,bc->bhd", weights[0], means).relu().mean(0)
    bias = 1 - torch.einsum("hcd,hd->hc", weights[1], hidden) + 0.01 * torch.rand(4, 40, generator=generator)
    gate = GateSpec(*weights, bias, keep=10)

    def overlap(form: GateSpec) -> float:
        before, now = (torch_steps.select(one, means)[1] for one in (gate, form))
        return float((before & now).sum() / (before | now).sum())

    assert overlap(rounded_gate(gate)) < 0.9
    assert overlap(gate_of_bytes(gate, means)) > 0.98


def test_a_generator_whose_choice_bytes_cannot_hold_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 6, 30), (2, 30, 6)
    gate = GateSpec(*(torch.randn(shape, generator=generator) for shape in shapes), torch.zeros(2, 30), keep=15)
    gate.weight2[:, :, 0] *= 1e-3  # all that tells channels apart is far below what the largest weight rounds to
    gate.weight2[:, 0, :] = 1e4
    gate.weight2[:, 1:, 1:] = 0
    assert gate_of_bytes(gate, torch.rand(64, 30, generator=generator)) is gate
