"""``prepare(precision="int8")``: what becomes of whole networks, and what is refused."""

from dataclasses import replace

import psutil
import pytest
import torch
from torch import Tensor, nn

import dgconv
from dgconv import deploy
from dgconv.deploy.agreement import gated
from dgconv.deploy.compile import folding, low_precision
from dgconv.deploy.graph import ByteConv, Bytes, ByteTable, Conv, GateSpec, Linear
from dgconv.deploy.rules import problem
from dgconv.deploy.run import torch_steps
from dgconv.errors import UserError
from dgconv.layers.select import dynamic_layers
from dgconv.ops import native

NETWORKS = ("resnet20", "resnet20_sgc", "resnet20_lgc", "resnet20_dgc", "resnet20_dgcg", "resnet20_fbs",
            "condensenet20_dgc", "mobilenetv2_dgc")  # fmt: skip

needs_kernels = pytest.mark.skipif(not native.available(), reason="no native kernels")


def network(name: str) -> nn.Module:
    """With norms that have seen images, and generators whose scores differ."""
    torch.manual_seed(0)
    model = dgconv.create_model(name, num_classes=10)
    for parameter_name, parameter in model.named_parameters():
        if "generator" in parameter_name and parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, 3, 32, 32))
    return model.eval()


def images(count: int = 16) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def in_int8(model: nn.Module, **options: object) -> deploy.PreparedModel:
    return deploy.prepare(model, precision="int8", calibration=images(), force=True, **options)  # type: ignore[arg-type]


@needs_kernels
@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_close_to_those_in_float32(name: str) -> None:
    model = network(name)
    prepared, x = in_int8(model), images(8)
    assert prepared.precision == "int8"
    expected = deploy.prepare(model)(x)
    distance = (prepared(x) - expected).square().mean().sqrt() / expected.std()
    assert distance < 0.15, name


@needs_kernels
def test_a_stored_network_is_small_and_the_same(tmp_path) -> None:
    model = network("resnet20_dgc")
    prepared, x = in_int8(model), images(3)
    deploy.save(prepared, tmp_path / "int8")
    deploy.save(deploy.prepare(model), tmp_path / "float32")
    sizes = [sum(file.stat().st_size for file in (tmp_path / kind).iterdir()) for kind in ("int8", "float32")]
    assert sizes[0] < 0.4 * sizes[1]  # the graph is a good part of so small a network
    assert torch.equal(deploy.load(tmp_path / "int8")(x), prepared(x))


@needs_kernels
def test_the_report_tells_what_runs_in_which_precision() -> None:
    report = in_int8(network("resnet20_fbs")).report()
    assert {row.precision for row in report.rows if "winning" in row.step} == {"float32"}
    assert {row.precision for row in report.rows if "bytes" in row.step} == {"int8"}
    assert any("16 calibration images" in note for note in report.notes)


@needs_kernels
def test_a_classifier_of_many_weights_has_them_in_bytes() -> None:
    torch.manual_seed(0)
    model = dgconv.create_model("resnet20", num_classes=2000).eval()
    prepared, x = in_int8(model), images(3)
    graph = deploy.prepare(model).graph
    floats, bytes = graph.steps[-1], prepared.graph.steps[-1]
    assert isinstance(floats, Linear)
    assert isinstance(bytes, Linear)
    assert floats.scale is None
    assert bytes.weight.dtype == torch.int8
    assert "linear, weights in int8" in [row.step for row in prepared.report().rows]
    rows = torch_steps.run(replace(graph, output=floats.input, steps=graph.steps[:-1]), x)
    by_floats, by_bytes = (torch_steps.run_step(step, {step.input: rows}) for step in (floats, bytes))
    torch.testing.assert_close(by_bytes, by_floats, rtol=0.0, atol=0.01 * float(by_floats.abs().max()))
    assert not torch.equal(by_bytes, by_floats)
    torch.testing.assert_close(prepared(x), torch_steps.run(prepared.graph, x), rtol=1e-4, atol=1e-4)
    small = in_int8(network("resnet20")).graph.steps[-1]
    assert isinstance(small, Linear)
    assert small.scale is None, "ten classes: nothing to gain"


@needs_kernels
@pytest.mark.parametrize("activation", [nn.SiLU, nn.Hardswish, nn.GELU])
def test_activations_between_convolutions_are_looked_up(activation: type[nn.Module], tmp_path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 20, 3, bias=False), nn.Conv2d(20, 20, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(20), nn.BatchNorm2d(20)])
            self.act, self.head = activation(), nn.Linear(20, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(self.norms[0](self.first(x)))
            return self.head(self.act(x + self.norms[1](self.second(x))).mean((2, 3)))

    model, x = Net().eval(), torch.randn(6, 3, 17, 19)
    prepared = deploy.prepare(model, precision="int8", calibration=torch.randn(16, 3, 17, 19), force=True)
    assert [type(step).__name__ for step in prepared.graph.steps] == (
        ["Quantize", "ByteConv", "ByteTable", "ByteConv", "ByteTable", "ByteMean", "Linear"]
    )
    with torch.no_grad():
        expected = model(x)
    assert (prepared(x) - expected).abs().max() < 0.05 * expected.abs().max()
    torch.testing.assert_close(prepared(x), torch_steps.run(prepared.graph, x), rtol=0, atol=1e-5)
    deploy.save(prepared, tmp_path)
    assert torch.equal(deploy.load(tmp_path)(x), prepared(x))
    table = next(step for step in prepared.graph.steps if isinstance(step, ByteTable))
    for wrong in (table.table[:-1], [*table.table[:-1], 256], [*table.table[:-1], -1], [*table.table[:-1], 0.5]):
        assert "`table` must be 256 numbers" in str(problem(replace(table, table=wrong)))


def test_gates_of_narrow_heads_go_into_the_weights(tmp_path) -> None:
    prepared = in_int8(network("resnet20_dgc"))
    folded = [step for step in prepared.graph.steps if isinstance(step, ByteConv) and step.folded]
    assert {len(step.weight) for step in folded} == {16, 32}  # and not those of 64
    told = [row.step for row in prepared.report().rows if "gates in the weights" in row.step]
    assert len(told) == len(folded) > 3
    deploy.save(prepared, tmp_path / "folded")
    stored = deploy.load(tmp_path / "folded")
    assert [getattr(s, "folded", None) for s in stored.graph.steps] == [
        getattr(s, "folded", None) for s in prepared.graph.steps
    ]
    apart = [replace(step, folded=False) if isinstance(step, ByteConv) else step for step in prepared.graph.steps]
    picking = deploy.PreparedModel(replace(prepared.graph, steps=apart))
    distance = (picking(images(8)) - prepared(images(8))).square().mean().sqrt() / prepared(images(8)).std()
    assert 0 < distance < 0.1


@pytest.mark.parametrize(
    ("outputs", "inputs", "heads", "kernel", "side", "pays"),
    [
        (16, 32, 4, 1, 112, True),
        (32, 192, 4, 1, 28, True),
        (16, 16, 4, 3, 32, True),
        (64, 256, 8, 1, 32, True),
        (320, 960, 4, 1, 7, False),  # more weights than can be folded in the time
        (64, 64, 4, 3, 56, False),  # heads as wide as a vector
        (512, 512, 4, 3, 7, False),
        (128, 512, 4, 1, 28, False),
    ],
)
def test_which_gates_go_into_the_weights(
    outputs: int, inputs: int, heads: int, kernel: int, side: int, pays: bool
) -> None:
    gate = GateSpec(
        torch.zeros(heads, 1, inputs), torch.zeros(heads, inputs, 1), torch.ones(heads, inputs), inputs // 2
    )
    conv = Conv("x", "y", torch.zeros(outputs, inputs, kernel, kernel), gate=gate)
    assert folding.pays(conv, side**2, side**2) == pays


def test_only_gates_can_go_into_the_weights() -> None:
    ones = torch.ones(2)
    conv = ByteConv("x", "y", torch.ones(2, 2, 1, 1, dtype=torch.int8), ones, ones, Bytes(1.0, 0), Bytes(1.0, 0))
    assert problem(conv) is None
    assert "has no gate" in str(problem(replace(conv, folded=True)))
    assert "cannot stand together" in str(problem(replace(conv, folded=True, picks=[[0, 1]])))


@needs_kernels
def test_what_hurts_is_put_back_until_the_drop_is_met() -> None:
    model = network("resnet20")
    asked: list[int] = []

    def evaluate(prepared: deploy.PreparedModel) -> float:
        convs = sum(isinstance(step, ByteConv) for step in prepared.graph.steps)
        asked.append(convs)
        return 5.0 + convs / 10  # the more in int8, the worse

    prepared = in_int8(model, evaluate=evaluate, max_drop=1.5)
    left = sum(isinstance(step, ByteConv) for step in prepared.graph.steps)
    assert 0 < left <= 15
    assert asked[:2] == [0, 21]
    assert any(f"{21 - left} steps that hurt most are in float32" in note for note in prepared.notes)


@needs_kernels
def test_where_int8_is_no_faster_float32_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_precision, "_slower", lambda *_: "float32 is used: it is faster")
    model = network("resnet20")
    prepared = deploy.prepare(model, precision="int8", calibration=images())
    assert prepared.precision == "float32"
    assert prepared.report().notes[-1] == "float32 is used: it is faster"
    assert in_int8(model).precision == "int8"


def test_without_kernels_it_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_find", lambda: "the native kernels are not in use: they were taken away")
    prepared = in_int8(network("resnet20"))
    assert prepared.precision == "float32"
    assert "taken away" in prepared.notes[0]


@needs_kernels
@pytest.mark.parametrize(
    ("calibration", "words"),
    [
        (None, "int8 needs images"),
        ([], "there are no calibration images"),
        (torch.zeros(0, 3, 32, 32), "there are no calibration images"),
        (torch.zeros(4, 3, 32, 32), "of one colour"),
        (torch.full((4, 3, 32, 32), torch.nan), "NaN or infinite"),
        (torch.rand(4, 1, 32, 32), "have 1 channels, and the network takes 3"),
        (torch.rand(3, 32, 32), "are batches"),
        ([torch.zeros(2, 3, 32, 32, dtype=torch.uint8)], "of floats, got a tensor of shape"),
    ],
)
def test_calibration_that_tells_nothing_is_refused(calibration: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        deploy.prepare(network("resnet20"), precision="int8", calibration=calibration)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "int4"}, "`precision` must be one of float32, int8"),
        ({"calibration": images(2)}, "are for int8"),
        ({"precision": "int8", "calibration": images(2), "max_drop": 0.3}, "go together"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        deploy.prepare(network("resnet20"), **options)


@needs_kernels
def test_one_image_and_a_layer_that_is_never_positive_will_do() -> None:
    dead = nn.Conv2d(3, 4, 3, padding=1)
    nn.init.constant_(dead.weight, 0.0)
    nn.init.constant_(dead.bias, -1.0)
    model = nn.Sequential(dead, nn.ReLU(), nn.Conv2d(4, 5, 1)).eval()
    prepared = deploy.prepare(model, precision="int8", calibration=torch.rand(1, 3, 8, 8), force=True)
    assert "1 calibration image; more would make them safer" in prepared.notes[0]
    x = torch.rand(2, 3, 8, 8)
    assert torch.allclose(prepared(x), model(x), atol=0.02)


@needs_kernels
def test_ten_thousand_calls_with_changing_choices_do_not_grow_memory() -> None:
    model = network("resnet20_dgc")
    for _, layer in dynamic_layers(model):
        nn.init.normal_(layer.generator.weight2, std=2.0)  # what is kept changes with every image
    prepared = in_int8(model)
    x = torch.randn(50, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    choices = {tuple(gate.select(x)[1].flatten(1).unique(dim=0).shape) for gate in gated(prepared.graph)}
    assert max(count for count, _ in choices) > 8, "choices do change"

    def call(times: int) -> int:
        for index in range(times):
            prepared(x[index % 50 : index % 50 + 1])
        return psutil.Process().memory_info().rss

    before = call(500)
    assert call(10_000) - before < 1 << 20
    assert len(prepared._whole._chosen._free) == 1  # type: ignore[union-attr]


@needs_kernels
def test_agreement_of_choices() -> None:
    model = network("resnet20_dgc")
    floats, x = deploy.prepare(model), images(12)
    same = deploy.agreement(floats, floats, x)
    assert (same.flipped, same.logits, same.overlap) == (0.0, 0.0, 1.0)
    found = deploy.agreement(floats, in_int8(model), x)
    assert len(found.layers) == len(same.layers) > 10
    assert 0.9 < found.overlap <= 1.0
    assert all(0 <= layer.same <= 1 and layer.same <= layer.overlap + 1e-6 for layer in found.layers)
    assert found.layers[0].layer in str(found)
    with pytest.raises(UserError, match="not forms of one network"):
        deploy.agreement(floats, deploy.prepare(network("resnet20")), x)


@pytest.mark.parametrize(("bytes", "is_slower"), [([1.0, 5.0, 5.0], False), ([2.5, 2.5, 2.5], True)])
def test_a_machine_that_is_busy_does_not_decide(monkeypatch: pytest.MonkeyPatch, bytes: list[float], is_slower: bool):
    """Most calls in int8 are held up by others; what float32 takes is two milliseconds."""
    clock, calls = [0.0], iter(bytes * low_precision.TIMINGS)
    monkeypatch.setattr(low_precision.time, "perf_counter", lambda: clock[0])

    def wait(milliseconds: float) -> None:
        clock[0] += milliseconds / 1e3

    told = low_precision._slower(lambda x: wait(next(calls)), lambda x: wait(2.0), images(1))  # type: ignore[arg-type]
    assert bool(told) is is_slower


@needs_kernels
def test_bytes_of_a_depthwise_convolution_that_would_wait_for_torch_are_floats() -> None:
    class Divided(nn.Module):
        """What torch does lies beside a depthwise convolution."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.apart = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x).relu()
            return self.apart(x).relu() * x.sort(1).values

    torch.manual_seed(0)
    model = Divided().eval()
    prepared = in_int8(model)
    assert prepared.precision == "float32"
    assert any("left to torch" in note for note in prepared.notes)
    torch.testing.assert_close(prepared(images(2)), model(images(2)), rtol=1e-3, atol=1e-3)


@needs_kernels
def test_bytes_that_would_wait_for_torch_are_floats() -> None:
    model = dgconv.create_model("resnet18_dgc", num_classes=10, width=16, saliency_start="calm", scales=False).eval()
    prepared = in_int8(model)
    assert prepared.precision == "float32"
    assert any("left to torch" in note for note in prepared.notes)
    torch.testing.assert_close(prepared(images(2)), model(images(2)), rtol=1e-3, atol=1e-3)
