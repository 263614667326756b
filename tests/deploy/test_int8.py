"""``prepare(precision="int8")``: what becomes of whole networks, and what is refused."""

import pytest
import torch
from torch import Tensor, nn

import dgconv
from dgconv import deploy
from dgconv.deploy.compile import low_precision
from dgconv.deploy.graph import ByteConv
from dgconv.errors import UserError
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
def test_memory_does_not_grow_with_changing_choices() -> None:
    prepared = in_int8(network("resnet20_dgc"))
    before = len(prepared._whole._chosen._free)  # type: ignore[union-attr]
    for seed in range(50):
        prepared(torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed)))
    assert len(prepared._whole._chosen._free) == max(1, before)  # type: ignore[union-attr]


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


@needs_kernels
def test_bytes_that_would_wait_for_torch_are_floats() -> None:
    model = dgconv.create_model("resnet18_dgc", num_classes=10, width=16, saliency_start="calm", scales=False).eval()
    prepared = in_int8(model)
    assert prepared.precision == "float32"
    assert any("left to torch" in note for note in prepared.notes)
    torch.testing.assert_close(prepared(images(2)), model(images(2)), rtol=1e-3, atol=1e-3)
