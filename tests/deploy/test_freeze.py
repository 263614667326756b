"""``freeze``: choices that do not depend on the image are fixed, and the network does what it did."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dgconv
from dgconv import deploy
from dgconv.deploy.graph import ByteConv, Conv, GateSpec, Graph
from dgconv.deploy.run import torch_steps
from dgconv.deploy.run.program import NativeProgram
from dgconv.deploy.validate import why_not
from dgconv.errors import UserError
from dgconv.layers.select import dynamic_layers
from dgconv.ops import native
from dgconv.train.freezing import silence_


def images(count: int = 12, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def network(*, is_frozen: bool, layers: int | None = None) -> nn.Module:
    """A network whose generators look at the image; of some layers heads keep channels that it does not decide."""
    torch.manual_seed(0)
    model = dgconv.create_model("resnet20_dgc", num_classes=10, pruning_rate=0.5).eval()
    dgconv.train.set_progress(model, 1.0)
    for number, (_, layer) in enumerate(dynamic_layers(model)):
        nn.init.normal_(layer.generator.weight2, std=0.5)
        if is_frozen and (layers is None or number < layers):
            heads, channels = layer.generator.bias.shape
            kept = torch.rand(heads, channels).argsort(1) < channels // 2
            silence_(layer, kept.float())
    return model


def gates(prepared: deploy.PreparedModel) -> list[GateSpec]:
    return [step.gate for step in prepared.graph.steps if isinstance(step, Conv | ByteConv) and step.gate]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_fixed_choice_changes_nothing_on_images_it_has_not_seen(precision: str) -> None:
    if precision == "int8" and not native.available():
        pytest.skip("no native kernels")
    model, force = network(is_frozen=True), {"force": True} if precision == "int8" else {}
    calibration = {"calibration": images()} if precision == "int8" else {}
    usual = deploy.prepare(model, precision=precision, **calibration, **force)  # type: ignore[call-overload]
    fixed = deploy.prepare(model, precision=precision, calibration=images(), freeze="auto", **force)  # type: ignore[call-overload]
    assert all(gate.fixed is not None for gate in gates(fixed))
    assert len(gates(fixed)) == len(gates(usual)) > 10
    x = images(7, seed=2)
    assert (fixed(x) - usual(x)).abs().max() <= 1e-5 * usual(x).abs().max()
    assert (fixed(x) - torch_steps.run(fixed.graph, x)).abs().max() <= 1e-4 * usual(x).abs().max()
    assert "keep the same channels of every image; 0.00% of 12 images" in " ".join(str(fixed.report()).split())
    assert "the same of every image" in " ".join(str(fixed.report()).split())


def test_choices_that_depend_on_the_image_stay_as_they_are() -> None:
    model = network(is_frozen=True, layers=3)
    fixed = deploy.prepare(model, calibration=images(), freeze="auto")
    are_fixed = [gate.fixed is not None for gate in gates(fixed)]
    assert all(are_fixed[:3])
    assert not all(are_fixed)
    x = images()
    assert (fixed(x) - deploy.prepare(model)(x)).abs().max() < 1e-3
    forced = deploy.freeze(deploy.prepare(network(is_frozen=False)), images(), overlap=0.01)
    assert all(gate.fixed for gate in gates(forced))


def test_what_it_costs_is_measured() -> None:
    errors = iter((12.0, 12.5))
    fixed = deploy.freeze(deploy.prepare(network(is_frozen=True)), images(), evaluate=lambda model: next(errors))
    assert "error 12.00 % before, 12.50 % now" in " ".join(str(fixed.report()).split())


class Features(nn.Module):
    """What other networks take, from two places."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dynamic = nn.Conv2d(3, 16, 3), dgconv.DynamicGroupConv2d(16, 16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.dense(x).relu()
        return x, self.dynamic(x)


def test_networks_without_logits_have_choices_too() -> None:
    fixed = deploy.prepare(Features().eval(), calibration=images(), freeze=0.01)
    assert fixed.notes == ("1 of 1 dynamic convolutions keep the same channels of every image",)


def test_a_fixed_choice_is_saved(tmp_path: Path) -> None:
    fixed = deploy.prepare(network(is_frozen=True), calibration=images(), freeze="auto")
    deploy.save(fixed, tmp_path / "fast")
    again = deploy.load(tmp_path / "fast")
    assert [gate.fixed for gate in gates(again)] == [gate.fixed for gate in gates(fixed)]
    assert torch.equal(again(images(2)), fixed(images(2)))


def test_networks_without_choices_are_left_alone() -> None:
    model = dgconv.create_model("resnet20", num_classes=10).eval()
    prepared = deploy.prepare(model, calibration=images(), freeze="auto")
    assert prepared.notes == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"freeze": "auto"}, "give `calibration`"),
        ({"freeze": 0.0, "calibration": images()}, "`overlap` must be"),
        ({"freeze": 2.0, "calibration": images()}, "`overlap` must be"),
        ({"freeze": "auto", "calibration": torch.empty(0, 3, 32, 32)}, "no calibration images"),
        ({"freeze": "auto", "calibration": torch.zeros(2, 4, 32, 32)}, "4 channels"),
        ({"freeze": "always", "calibration": images()}, "`freeze`"),
    ],
)
def test_what_is_refused(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        deploy.prepare(network(is_frozen=True), **options)


@pytest.mark.parametrize("fixed", [[[0, 1], [2, 99]], [[1, 0], [2, 3]], [[0, 0], [1, 2]], [[-1, 0], [1, 2]]])
def test_a_choice_of_channels_that_are_not_there_is_refused_by_files_and_kernels(fixed: list[list[int]]) -> None:
    gate = GateSpec(torch.ones(2, 1, 8), torch.ones(2, 2, 1), torch.ones(2, 2), keep=2, fixed=fixed)
    conv = Conv("x", "y", torch.ones(4, 8, 3, 3), padding=(1, 1), gate=gate)
    graph = Graph("x", "y", [conv])
    assert "`fixed` must be ascending numbers of its 8 inputs" in str(why_not(graph))
    if native.available():
        good = Graph("x", "y", [replace(conv, gate=replace(gate, fixed=[[0, 1], [2, 7]]))])
        assert checked(good) is None
        assert checked(graph)


def checked(graph: Graph) -> str | None:
    """What the native library says against a program, before it runs."""
    try:
        NativeProgram(graph)(torch.ones(1, 8, 6, 6))
    except UserError as error:
        return str(error)
    return None
