"""Native programs against the same steps run by torch."""

import copy
import gc
import pickle
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dgconv.deploy.graph import (
    BoostSpec,
    Concat,
    Conv,
    Elementwise,
    GateSpec,
    GlobalPool,
    Graph,
    Linear,
    Norm,
    Pool,
    Torch,
)
from dgconv.deploy.run import layout as layout_module
from dgconv.deploy.run import torch_steps
from dgconv.deploy.run.arena import Buffer, assign_offsets, find_homes
from dgconv.deploy.run.program import NativeProgram
from dgconv.deploy.run.shapes import value_shapes
from dgconv.errors import UserError
from dgconv.ops import native

pytestmark = pytest.mark.skipif(not native.available(), reason="the native kernels were not built")

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def norm(channels, activation="relu"):
    return Norm(torch.rand(channels) + 0.5, torch.randn(channels), activation)


def gate(channels, heads, hidden=3, **rule):
    weight1, weight2 = torch.randn(heads, hidden, channels), torch.randn(heads, channels, hidden)
    return GateSpec(weight1, weight2, torch.ones(heads, channels), **rule)


def boost(channels, outputs, keep):
    return BoostSpec(torch.randn(outputs, channels), torch.ones(outputs), keep, torch.randn(outputs))


def conv(source, target, channels, outputs, size=1, **options):
    weight = torch.randn(outputs, channels // options.get("groups", 1), size, size) / channels**0.5 / size
    return Conv(source, target, weight, padding=(size // 2, size // 2), **options)


def check(graph, x, tolerance=1e-5):
    expected, found = torch_steps.run(graph, x), NativeProgram(graph)(x)
    scale = float(expected.nan_to_num(0, 0, 0).abs().max())
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def test_weights_that_are_a_part_of_others():
    """Not contiguous: what is packed is a copy, which must live as long as it is read."""
    weight = torch.randn(32, 64, 3, 3)[:, ::2] / 32
    for _ in range(3):
        check(Graph("x", "y", [Conv("x", "y", weight, padding=(1, 1))]), torch.randn(2, 32, 9, 9))


def expanded(channels, hidden, size=3, stride=1, **options):
    """A depthwise convolution with the 1x1 convolution before it as a part of it."""
    first = conv("x", "hidden", channels, hidden, bias=torch.randn(hidden), activation="relu6")
    return conv("x", "y", hidden, hidden, size, stride=(stride, stride), groups=hidden, expansion=first, **options)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.usefixtures("isa")
def test_expansion(size, stride):
    for hidden, height, width in ((16, 7, 7), (17, 14, 14), (24, 5, 33), (40, 57, 60), (48, 28, 28)):
        for bias, activation, extra in ((None, "identity", (0, 0)), (torch.randn(hidden), "relu6", (1, 1))):
            options = {"bias": bias, "activation": activation, "extra_padding": extra}
            step = expanded(5, hidden, size, stride, **options)
            check(Graph("x", "y", [step]), torch.randn(2, 5, height, width))


@pytest.mark.usefixtures("isa")
def test_expansion_of_images_by_a_larger_kernel():
    """As a network begins: a convolution with a stride, whose rows lie between padding, then a depthwise one."""
    for size, stride, extra in ((3, 2, 0), (3, 1, 0), (7, 2, 1), (1, 2, 0), (2, 1, 1)):
        for height, width in ((33, 30), (64, 112)):
            step = expanded(3, 40, activation="relu6", bias=torch.randn(40))
            options = {"stride": (stride, stride), "extra_padding": (extra, extra)}
            step.expansion = conv("x", "hidden", 3, 40, size, bias=torch.randn(40), activation="relu6", **options)
            check(Graph("x", "y", [step]), torch.randn(2, 3, height, width))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.usefixtures("isa")
def test_expansion_leaves_sums_for_the_gate_that_follows(size):
    for width in (7, 57):
        step = expanded(3, 40, activation="relu6")
        step.expansion = conv("x", "hidden", 3, 40, size)
        graph = Graph("x", "z", [step, conv("y", "z", 40, 8, gate=gate(40, 4, keep=13))])
        x = torch.randn(3, 3, width, width)
        check(graph, x)
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(NativeProgram(graph)(x))
        assert all(torch.equal(results[0], result) for result in results)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.usefixtures("isa")
def test_picked_channels(batch):
    """Heads that read channels of their own, as many as they like, none included."""
    everything = list(range(13))
    for picks in ([[0, 5, 12], [3], everything], [everything, [], [1, 2]], [[4, 7], [4, 7], [4, 7]]):
        for size, options in ((1, {}), (3, {"stride": (2, 2)}), (3, {"before": norm(13), "residual": "x2"})):
            step = conv("x", "y", 13, 12, size, bias=torch.randn(12), activation="relu", **options)
            step.picks = picks
            for head, picked in enumerate(picks):
                others = [channel for channel in everything if channel not in picked]
                step.weight[head::3, others] = 0
            before = [conv("x", "x2", 13, 12, 1)] if "residual" in options else []
            graph = Graph("x", "y", [*before, step])
            x = torch.randn(batch, 13, 11, 9)
            check(graph, x)
            results = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(NativeProgram(graph)(x))
            assert all(torch.equal(results[0], result) for result in results)


@pytest.mark.usefixtures("isa")
def test_channels_in_another_order():
    order = torch.randperm(9).tolist()
    for options in ({}, {"norm": norm(9), "activation": "relu6"}, {"other": "x", "activation": "relu"}):
        step = Elementwise("parts", "y", order=order, **options)
        parts = [conv("x", "part1", 9, 5, 1), conv("x", "part2", 9, 4, 1), Concat(["part1", "part2"], "parts")]
        check(Graph("x", "y", [*parts, step]), torch.randn(2, 9, 6, 7))


def network(gated=True):
    """A bit of everything: strides, shortcuts, a shortcut that changes the width, dense layers, a classifier."""
    rule = (lambda channels: gate(channels, 4, keep=channels // 3)) if gated else (lambda channels: None)
    steps = [
        conv("x", "stem", 3, 16, 5, stride=(2, 2), activation="relu", bias=torch.randn(16)),
        Pool("stem", "pooled", "max", (3, 3), (2, 2), (1, 1)),
        conv("pooled", "a1", 16, 16, 3, gate=rule(16), activation="relu"),
        conv("a1", "a2", 16, 16, 3, gate=rule(16), residual="pooled", activation="relu"),
        conv("a2", "short", 16, 24, 1, stride=(2, 2), gate=rule(16)),
        conv("a2", "b1", 16, 24, 3, stride=(2, 2), gate=rule(16), activation="relu6"),
        conv("b1", "b2", 24, 24, 3, gate=rule(24), residual="short", activation="relu"),
    ]
    joined, channels = "b2", 24
    for layer in range(3):
        steps += [
            conv(joined, f"squeezed{layer}", channels, 16, 1, gate=rule(channels), before=norm(channels)),
            conv(f"squeezed{layer}", f"grown{layer}", 16, 8, 3, before=norm(16), groups=4),
            Concat([joined, f"grown{layer}"], f"joined{layer}"),
        ]
        joined, channels = f"joined{layer}", channels + 8
    steps += [
        GlobalPool(joined, "features", norm(channels)),
        Linear("features", "y", torch.randn(10, channels), torch.randn(10)),
    ]
    return Graph("x", "y", steps)


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        ((3, 3), (2, 2), (1, 1)),
        ((2, 2), (2, 2), (0, 0)),
        ((3, 2), (1, 3), (1, 0)),
        ((5, 5), (1, 1), (2, 2)),
        ((1, 4), (4, 1), (0, 2)),
        ((7, 7), (7, 7), (0, 0)),
    ],
)
@pytest.mark.usefixtures("isa")
def test_pool(kind, kernel, stride, padding):
    for height, width in ((7, 7), (8, 33), (17, 16), (31, 64)):
        for before in (None, norm(3), norm(3, "identity"), norm(3, "relu6")):
            graph = Graph("x", "y", [Pool("x", "y", kind, kernel, stride, padding, before)])
            check(graph, torch.randn(2, 3, height, width))


@pytest.mark.usefixtures("isa")
def test_pool_with_nan_and_infinity():
    x = torch.randn(1, 2, 20, 37)
    x[0, 0, 3, 4], x[0, 0, 10, 36], x[0, 1, 19, 0], x[0, 1, 5, 5] = NAN, INF, -INF, NAN
    check(Graph("x", "y", [Pool("x", "y", "max", (3, 3), (2, 2), (1, 1))]), x)
    check(Graph("x", "y", [Pool("x", "y", "average", (2, 2), (2, 2))]), x)


@pytest.mark.usefixtures("isa")
def test_global_pool():
    for height, width in ((1, 1), (1, 3), (4, 4), (7, 7), (5, 13), (16, 32)):
        for before in (None, norm(5), norm(5, "relu6")):
            check(Graph("x", "y", [GlobalPool("x", "y", before)]), torch.randn(3, 5, height, width))


@pytest.mark.usefixtures("isa")
def test_linear():
    for inputs, outputs in ((1, 1), (5, 3), (16, 8), (33, 21), (64, 10)):
        for bias in (None, torch.randn(outputs)):
            check(Graph("x", "y", [Linear("x", "y", torch.randn(outputs, inputs), bias)]), torch.randn(3, inputs))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("activation", ["identity", "relu", "gelu"])
def test_linear_of_bytes(activation):
    for inputs, outputs in ((1, 1), (5, 3), (16, 8), (33, 21), (70, 10), (131, 9)):
        for bias in (None, torch.randn(outputs)):
            weight, scale = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8), torch.rand(outputs) / 64
            step = Linear("x", "y", weight, bias, activation, scale=scale)
            check(Graph("x", "y", [step]), torch.randn(3, inputs))


@pytest.mark.parametrize("activation", ["identity", "relu", "relu6"])
@pytest.mark.usefixtures("isa")
def test_pointwise(activation):
    x = torch.randn(2, 5, 7, 9) * 4
    x[0, 0, 0, :3] = torch.tensor([NAN, INF, -INF])
    for before in (None, norm(5), norm(5, "identity")):
        steps = [Elementwise("x", "a", before, None, activation), Elementwise("a", "y", before, "x", activation)]
        check(Graph("x", "a", steps[:1]), x)
        check(Graph("x", "y", steps), x)


def test_pointwise_on_rows():
    steps = [Linear("x", "a", torch.randn(7, 5)), Elementwise("a", "y", norm(7), "a", "relu6")]
    check(Graph("x", "y", steps), torch.randn(3, 5))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("rule", [{"keep": 1}, {"keep": 6}, {"keep": 20}, {"threshold": 0.7}, {"threshold": 0.0}])
@pytest.mark.parametrize("before", [None, "norm"])
def test_dynamic_conv(rule, before):
    """Behind a convolution, which leaves it the sums, and behind a pool, which does not."""
    for head in (conv("x", "a", 5, 20, 3), Pool("x", "a", "max", (3, 3), (1, 1), (1, 1))):
        channels = 20 if isinstance(head, Conv) else 5
        rule = {name: min(value, channels) for name, value in rule.items()}
        last = conv("a", "y", channels, 12, 3, gate=gate(channels, 3, **rule), before=before and norm(channels))
        check(Graph("x", "y", [head, last]), torch.randn(3, 5, 13, 18), 1e-4)


@pytest.mark.usefixtures("isa")
def test_static_conv():
    x = torch.randn(2, 12, 13, 18)
    for options in (
        {"stride": (2, 1), "dilation": (1, 2), "extra_padding": (1, 2)},
        {"groups": 3, "bias": torch.randn(24), "before": norm(12)},
        {"groups": 3, "interleaved": True, "residual": "r", "activation": "relu6", "bias": torch.randn(24)},
        {"groups": 12, "activation": "relu"},
    ):
        check(Graph("x", "y", [conv("x", "r", 12, 24, 1), conv("x", "y", 12, 24, 3, **options)]), x, 1e-4)


def test_dynamic_convs_that_share_an_input():
    """One takes the sums that the first step leaves, the other one's norm makes them useless."""
    plain = conv("a", "b", 20, 12, 3, gate=gate(20, 3, keep=5))
    normed = conv("a", "y", 20, 12, 3, gate=gate(20, 3, keep=5), before=norm(20), residual="b")
    check(Graph("x", "y", [conv("x", "a", 5, 20, 3), plain, normed]), torch.randn(3, 5, 13, 18), 1e-4)


def test_dynamic_conv_on_the_input():
    check(Graph("x", "y", [conv("x", "y", 6, 8, 3, gate=gate(6, 2, keep=3))]), torch.randn(2, 6, 9, 9), 1e-4)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("gated", [True, False])
def test_network(gated):
    graph = network(gated)
    for shape in ((1, 3, 32, 32), (3, 3, 45, 39), (2, 3, 64, 20)):
        check(graph, torch.randn(shape), 1e-4)


@pytest.mark.parametrize("batch", [1, 5])
def test_number_of_threads_does_not_matter(batch):
    program, x = NativeProgram(network()), torch.randn(batch, 3, 45, 39)
    results = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        results += [program(x), program(x)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_many_python_threads_at_once():
    program = NativeProgram(network())
    torch.set_num_threads(2)
    inputs = [torch.randn(1 + index % 2, 3, 32 + index % 3, 32) for index in range(48)]
    expected = [program(x) for x in inputs]
    fresh = copy.deepcopy(program)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(fresh, inputs))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_nothing_is_read_before_it_is_written(budget):
    program, x = NativeProgram(network()), torch.randn(2, 3, 45, 39)
    expected = program(x)
    (arena,) = budget._free.values()
    arena.fill_(NAN)
    assert torch.equal(program(x), expected)
    assert [*budget._free.values()] == [arena]


def test_large_batches_run_in_parts(monkeypatch):
    program, x = NativeProgram(network()), torch.randn(7, 3, 32, 32)
    expected = program(x)
    monkeypatch.setattr(layout_module, "CACHE_FLOATS", 3 * program._layout(1, 3, 32, 32)._arena_floats)
    assert program._layout(1, 3, 32, 32).images_at_once == 3
    torch.testing.assert_close(program(x), expected)
    y, times = program.timed(x)
    torch.testing.assert_close(y, expected)
    assert all(step.total > 0 for step in times)


def test_batch_of_zero():
    assert NativeProgram(network())(torch.empty(0, 3, 32, 32)).shape == (0, 10)


def test_other_layouts_of_the_input():
    program, x = NativeProgram(network()), torch.randn(2, 3, 33, 32)
    expected = program(x)
    assert torch.equal(program(x.to(memory_format=torch.channels_last)), expected)
    assert torch.equal(program(x.transpose(2, 3).contiguous().transpose(2, 3)), expected)


def test_input_is_left_alone_and_result_is_new():
    program, x = NativeProgram(Graph("x", "x", [])), torch.randn(2, 3, 4, 5)
    y = program(x)
    assert torch.equal(x, y)
    assert x.data_ptr() != y.data_ptr()
    program, before = NativeProgram(network()), torch.randn(1, 3, 32, 32)
    x = before.clone()
    first = program(x)
    kept = first.clone()
    program(torch.randn(1, 3, 32, 32))
    assert torch.equal(x, before)
    assert torch.equal(first, kept)


def test_more_shapes_than_are_remembered(budget):
    graph = network()
    program = NativeProgram(graph)
    budget._limit = 3 << 20
    for _ in range(2):
        for size in range(32, 72):
            x = torch.ones(1, 3, size, 32)
            torch.testing.assert_close(program(x), torch_steps.run(graph, x), rtol=1e-4, atol=1e-4)
    assert 0 < len(program._layouts._found) < 40
    assert budget.use.peak <= 3 << 20


def test_memory_is_given_back_at_once():
    """Not when the garbage collector comes by: there is much of it, and few objects to make it come."""
    program = NativeProgram(network())
    program(torch.randn(1, 3, 32, 32))
    gone = weakref.ref(program)
    gc.disable()
    try:
        del program
        assert gone() is None
    finally:
        gc.enable()


def test_timed():
    x = torch.randn(2, 3, 64, 64)
    for gated in (True, False):
        program = NativeProgram(network(gated=gated))
        y, (*times, call) = program.timed(x)
        assert torch.equal(y, program(x))
        assert (call.label, call.is_convolution) == ("", False)
        spent = {stage: sum(step.stages[stage] for step in times) for stage in ("pool", "generator", "select")}
        assert all((seconds > 0) == gated for seconds in spent.values())
        assert all(step.stages["compute"] > 0 for step in times)
        assert {True, False} == {step.is_convolution for step in times}


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_times_add_up_to_the_call(threads, monkeypatch):
    program, x, calls = NativeProgram(network()), torch.randn(1, 3, 64, 64), []
    run = program._run

    def timed_run(*arguments):
        begin = time.perf_counter()
        run(*arguments)
        calls.append(time.perf_counter() - begin)

    monkeypatch.setattr(program, "_run", timed_run)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sums = [sum(step.total for step in program.timed(x)[1]) for _ in range(15)]
    finally:
        torch.set_num_threads(before)
    wrong = [pair for pair in zip(sums, calls, strict=True) if abs(pair[0] - pair[1]) > 0.1 * pair[1]]
    assert len(wrong) <= 2, "of 15: the system may put the process aside just between two looks at the clock"


def test_an_expansion_is_a_convolution():
    _, (step, _) = NativeProgram(Graph("x", "y", [expanded(8, 32)])).timed(torch.randn(1, 8, 28, 28))
    assert step.is_convolution
    assert step.total > 0


def test_copies_work():
    program, x = NativeProgram(network()), torch.randn(1, 3, 32, 32)
    assert torch.equal(copy.deepcopy(program)(x), program(x))
    assert torch.equal(pickle.loads(pickle.dumps(program))(x), program(x))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 3, 32, 32, dtype=torch.float64), "float32"),
        (torch.zeros(3, 32, 32), "batch, channels, height, width"),
        (torch.zeros(1, 4, 32, 32), "must have 3 channels, got 4"),
        (torch.zeros(1, 3, 32, 32, device="meta"), "CPU"),
        (torch.zeros(1, 3), "batch, channels, height, width"),
        (torch.zeros(1, 3, 0, 32), "too small"),
    ],
)
def test_wrong_inputs(x, message):
    with pytest.raises(UserError, match=message):
        NativeProgram(network())(x)


def test_steps_that_are_not_native():
    with pytest.raises(UserError, match="sorting is not native"):
        NativeProgram(Graph("x", "y", [Torch(["x"], "y", torch.sort, "sorting is not native")]))


class TestConcat:
    def copies(self, graph, x):
        """Steps of the layout beyond those of the graph that compute something."""
        computing = [step for step in graph.steps if not isinstance(step, Concat)]
        return len(NativeProgram(graph)._layout(*x.shape).steps) - len(computing)

    def test_growing_chain_is_one_buffer(self):
        steps, joined, channels = [conv("x", "start", 3, 6)], "start", 6
        for layer in range(4):
            steps += [conv(joined, f"new{layer}", channels, 4, 3), Concat([joined, f"new{layer}"], f"cat{layer}")]
            joined, channels = f"cat{layer}", channels + 4
        graph, x = Graph("x", "y", [*steps, Pool(joined, "y", "average", (2, 2), (2, 2))]), torch.randn(2, 3, 9, 9)
        homes = find_homes(graph, value_shapes(graph, x.shape[1:]))
        assert {homes[name].buffer for name in homes if name not in "xy"} == {"cat3"}
        assert self.copies(graph, x) == 0
        check(graph, x)

    def test_joining_all_parts_again_and_again_is_one_buffer(self):
        steps, parts = [conv("x", "part0", 3, 6)], ["part0"]
        for layer in range(1, 5):
            steps += [Concat(parts, f"cat{layer}"), conv(f"cat{layer}", f"part{layer}", 6 * layer, 6, 3)]
            parts = [*parts, f"part{layer}"]
        graph, x = Graph("x", "y", [*steps, Concat(parts, "all"), GlobalPool("all", "y")]), torch.randn(2, 3, 9, 9)
        assert self.copies(graph, x) == 0
        check(graph, x)

    def test_parts_wanted_in_two_places_are_copied(self):
        steps = [
            conv("x", "a", 3, 4),
            conv("x", "b", 3, 5),
            Concat(["a", "b"], "ab"),
            Concat(["b", "a", "a"], "baa"),
            conv("ab", "c", 9, 13, 3),
            Elementwise("c", "y", None, "baa"),
        ]
        graph, x = Graph("x", "y", steps), torch.randn(2, 3, 9, 9)
        assert self.copies(graph, x) == 3
        check(graph, x)

    def test_input_and_output_as_parts(self):
        check(Graph("x", "y", [conv("x", "a", 3, 4), Concat(["x", "a", "x"], "y")]), torch.randn(2, 3, 9, 9))
        steps = [conv("x", "y", 3, 4), Concat(["y", "x"], "joined"), conv("joined", "unused", 7, 4)]
        check(Graph("x", "y", steps), torch.randn(2, 3, 9, 9))
        check(Graph("x", "y", [Concat(["x"], "y")]), torch.randn(2, 3, 9, 9))

    def test_output_outlives_the_join_it_is_part_of(self):
        steps = [conv("x", "y", 3, 4), Concat(["y", "x"], "joined"), conv("x", "a", 3, 7), conv("a", "b", 7, 7)]
        check(Graph("x", "y", steps), torch.randn(2, 3, 9, 9))

    def test_rows(self):
        steps = [GlobalPool("x", "a"), Linear("a", "b", torch.randn(4, 3)), Concat(["a", "b"], "y")]
        check(Graph("x", "y", steps), torch.randn(2, 3, 9, 9))

    def test_sizes_that_differ(self):
        graph = Graph("x", "y", [Pool("x", "a", "max", (2, 2), (2, 2)), Concat(["x", "a"], "y")])
        with pytest.raises(UserError, match="sizes differ"):
            NativeProgram(graph)(torch.randn(1, 3, 8, 8))


def test_random_graphs():
    """Steps that read any earlier values: nothing may be overwritten while it is still needed."""
    for seed in range(60):
        torch.manual_seed(seed)
        check(random_graph(), torch.randn(2, 4, 6, 7), 1e-4)


def random_graph():
    def pick(count):
        return int(torch.randint(count, ()))

    channels, steps = {"x": 4}, []
    for index in range(12):
        names, output = list(channels), f"v{index}"
        source = names[pick(len(names))]
        alike = [name for name in names if channels[name] == channels[source]]
        other = alike[pick(len(alike))]
        match pick(5):
            case 0:
                steps.append(Concat([names[pick(len(names))] for _ in range(1 + pick(3))], output))
                channels[output] = sum(channels[part] for part in steps[-1].inputs)
            case 1:
                steps.append(Elementwise(source, output, norm(channels[source]), other))
                channels[output] = channels[source]
            case 2:
                steps.append(Pool(source, output, "max", (3, 3), (1, 1), (1, 1)))
                channels[output] = channels[source]
            case kind:
                choice = gate(channels[source], 2, keep=1 + pick(channels[source])) if kind == 3 else None
                steps.append(conv(source, output, channels[source], channels[other], 3, gate=choice, residual=other))
                channels[output] = channels[other]
                if channels[output] % 2:
                    steps[-1].gate = None
                if kind == 4 and pick(2):
                    steps[-1].boost = boost(channels[source], channels[output], 1 + pick(channels[output]))
                    steps[-1].residual = other if pick(2) else None
    return Graph("x", list(channels)[-1 - pick(3)], steps)


def test_offsets_never_overlap_and_reuse_memory():
    torch.manual_seed(0)
    buffers = []
    for _ in range(200):
        floats, first, length = (int(torch.randint(limit, ())) for limit in (1000, 100, 10))
        buffers.append(Buffer(floats, first, first + length))
    total = assign_offsets(buffers)
    for index, one in enumerate(buffers):
        assert one.offset % 16 == 0
        assert one.offset + one.floats <= total
        for other in buffers[:index]:
            apart_in_time = one.last < other.first or other.last < one.first
            apart_in_space = one.offset + one.floats <= other.offset or other.offset + other.floats <= one.offset
            assert apart_in_time or apart_in_space
    assert total < 0.25 * sum(buffer.floats for buffer in buffers)
