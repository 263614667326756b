"""What is left to torch because torch is faster."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgconv import DynamicGroupConv2d, deploy
from dgconv.deploy.calls import ELEMENTWISE, Slot, TorchCall, called
from dgconv.deploy.graph import Step, Torch
from dgconv.deploy.run import torch_steps
from dgconv.ops import native
from dgconv.ops.layout import is_channels_last

needs_kernels = pytest.mark.skipif(not native.available(), reason="no native kernels")


class Block(nn.Module):
    """As in a ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.scale = nn.Parameter(torch.rand(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x).permute(0, 2, 3, 1)
        return x + (self.mix(self.norm(y)) * self.scale.exp()).permute(0, 3, 1, 2)


class Together(nn.Module):
    """Its result has the channels of a pixel together in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


class LastNorm(nn.Module):
    """A layer norm over the channels, which torch is given as the last dimension."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def runs(model: nn.Module, x: Tensor) -> dict[str, str]:
    """By layer what ran it; and the results are those of the model."""
    prepared = deploy.prepare(model.eval())
    with torch.no_grad():
        torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)
    return {time.label: "torch" if "torch" in time.stages else "native" for time in prepared.time_by_step(x)}


def test_a_convnext(engine: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 4, 4), LastNorm(16), Block(16), Block(16), LastNorm(16))
    model += nn.Sequential(nn.Conv2d(16, 24, 2, 2), Block(24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))
    x = torch.randn(2, 3, 32, 32)
    ran = runs(model, x)
    assert {runs for label, runs in ran.items() if label} == {engine}


@needs_kernels
@pytest.mark.parametrize("kernel", [3, 5, 7, (1, 7), 9])
def test_large_depthwise_kernels_are_left(kernel: int | tuple[int, int]) -> None:
    model = nn.Conv2d(6, 6, kernel, groups=6).eval()
    report = deploy.prepare(model).report()
    is_large = kernel == 9
    assert [row.runs for row in report.rows] == ["torch" if is_large else "native"]
    assert ("large depthwise kernels" in report.rows[0].reason) == is_large


@needs_kernels
@pytest.mark.parametrize(("kernel", "is_left"), [(7, False), (9, True)])
def test_a_large_depthwise_kernel_in_a_branch_does_not_cut_the_program(kernel: int, is_left: bool) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.large = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, kernel, padding=kernel // 2, groups=6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.first(x), self.large(x)], 1)

    runs(model := Branches(), torch.randn(2, 6, 16, 16))
    assert any("large depthwise" in row.reason for row in deploy.prepare(model).report().left) == is_left


@needs_kernels
@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Conv2d(16, 8, 1), "torch"),
        (nn.Conv2d(16, 8, 3, stride=2), "torch"),
        (nn.Conv2d(16, 16, 3, groups=16), "torch"),
        (nn.MaxPool2d(2), "torch"),
        (nn.Conv2d(16, 8, 3), "native"),
        (nn.Conv2d(16, 16, 2, groups=4), "native"),
        (DynamicGroupConv2d(16, 16, 1, heads=2), "native"),
    ],
    ids=["1x1", "stride 2", "depthwise", "pooling", "3x3", "groups", "dynamic"],
)
def test_one_step_between_channels_that_lie_together(layer: nn.Module, expected: str) -> None:
    model, x = nn.Sequential(Together(), layer), torch.randn(2, 16, 9, 9)
    assert runs(model, x)["1"] == expected
    assert is_channels_last(deploy.prepare(model)(x)), "as torch would lay it out"


@needs_kernels
def test_several_steps_between_them_are_native() -> None:
    model = nn.Sequential(Together(), nn.Conv2d(16, 8, 1), nn.MaxPool2d(2))
    assert set(list(runs(model, torch.randn(2, 16, 9, 9)).values())[1:]) == {"native"}


@needs_kernels
def test_images_are_not_copied_for_each_program() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Mish(), nn.Conv2d(8, 8, 1)).eval()
    images = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    assert set(runs(model, images).values()) == {"native", "torch"}
    assert deploy.prepare(model)(images).is_contiguous()


class Activated(nn.Module):
    """A convolution and an activation of it, by a function of both and the image."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 8, 3), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.conv(x), x)


@needs_kernels
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda y, x: F.mish(y), True),
        (lambda y, x: F.mish(y, False), True),
        (lambda y, x: F.leaky_relu(input=y, negative_slope=0.5), True),
        (lambda y, x: F.elu(y, inplace=True), True),
        (lambda y, x: F.mish(y) + y, False),
        (lambda y, x: (F.mish(y), y), False),
        (lambda y, x: (y.flatten(2), F.mish(y)), False),
        (lambda y, x: F.mish(y.flatten(2)), False),
        (lambda y, x: (y, F.mish(x)), False),
        (lambda y, x: y.tanh().exp(), False),
    ],
)
def test_activations_write_over_what_nobody_else_reads(
    function: Callable[[Tensor, Tensor], Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Activated(function).eval(), torch.randn(2, 3, 9, 9)
    before, overwritten, run_step = x.clone(), [], torch_steps.run_step

    def watched(step: Step, values: dict[str, Any]) -> Any:
        result = run_step(step, values)
        if isinstance(step, Torch) and called(step.function) in ELEMENTWISE.values():
            overwritten.append(any(result is values[name] for name in step.inputs))
        return result

    monkeypatch.setattr(torch_steps, "run_step", watched)
    prepared = deploy.prepare(model)
    for _ in range(2):
        torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)
    assert set(overwritten) == {expected}
    assert torch.equal(x, before)


def test_weights_for_torch_stay_as_they_are() -> None:
    """torch multiplies by those that require gradients in another way, which is faster in attention."""
    attention = nn.MultiheadAttention(12, 3, batch_first=True)

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.attention = nn.Conv2d(3, 12, 3), attention
            self.place = nn.Parameter(torch.rand(12))

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x).flatten(2).transpose(1, 2) + self.place.exp()
            return self.attention(x, x, x, need_weights=False)[0]

    model, x = Attends().eval(), torch.randn(2, 3, 9, 9)
    prepared = deploy.prepare(model)
    modules = [step.function.function for step in prepared.graph.steps if hasattr(step, "function")]
    (own,) = (module for module in modules if isinstance(module, nn.MultiheadAttention))
    assert own is not attention
    assert all(parameter.requires_grad for parameter in own.parameters())
    assert not prepared(x).requires_grad
    assert torch.equal(copy.deepcopy(prepared)(x), prepared(x))  # constants have no history, which torch does not copy
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)


def test_autocast_does_not_reach_the_steps_of_torch(engine: str) -> None:
    prepared, x = (
        deploy.prepare(nn.Sequential(nn.Conv2d(3, 4, 1), LastNorm(4), Block(4)).eval()),
        torch.randn(1, 3, 9, 9),
    )
    expected = prepared(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(prepared(x), expected)


def test_calls_find_their_values_wherever_they_are() -> None:
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    assert torch.equal(TorchCall(torch.sub, (Slot(1), Slot(0)), {})(x, y), y - x)
    assert torch.equal(TorchCall(torch.sub, (Slot(0),), {"other": Slot(1)})(x, y), x - y)
    assert torch.equal(TorchCall(torch.cat, ([Slot(1), Slot(0)], 1), {})(x, y), torch.cat([y, x], 1))
    assert torch.equal(TorchCall(F.pad, (Slot(0), [1, 1]), {"value": 2.0})(x), F.pad(x, [1, 1], value=2.0))


def test_the_summary_counts() -> None:
    one = deploy.prepare(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Mish()).eval()).report()
    if native.available():
        assert one.summary == f"1 of 2 steps is native ({native.isa()}), 1 is left to torch"
    two = deploy.prepare(nn.Sequential(nn.Mish(), nn.ELU()).eval()).report()
    assert two.summary.startswith("0 of 2 steps are native")
    assert "2 are left to torch" in two.summary
