"""Steps beside convolutions: activations, squeeze and excitation, layer norms, resampling, padding, some channels."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgconv import convert_, deploy
from dgconv.deploy.graph import (
    BoostSpec,
    Concat,
    Conv,
    Elementwise,
    GlobalPool,
    Graph,
    LayerNorm,
    Linear,
    Norm,
    Pad,
    Resize,
    Slice,
    Step,
)
from dgconv.deploy.rules import problem
from dgconv.deploy.run import torch_steps
from dgconv.deploy.run.program import NativeProgram
from dgconv.errors import UserError
from dgconv.layers.convert import DGCConfig
from dgconv.ops import native

needs_kernels = pytest.mark.skipif(not native.available(), reason="the native kernels were not built")
SMOOTH = ("silu", "hard_swish", "hard_sigmoid", "sigmoid", "tanh", "gelu", "gelu_tanh")


def check(graph: Graph, x: Tensor, tolerance: float = 1e-5) -> None:
    expected, found = torch_steps.run(graph, x), NativeProgram(graph)(x)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def conv(channels: int, outputs: int, size: int, groups: int = 1, **options) -> Conv:
    weight = torch.randn(outputs, channels // groups, size, size) / (channels // groups) ** 0.5 / size
    return Conv("x", "y", weight, torch.randn(outputs), padding=(size // 2, size // 2), groups=groups, **options)


@needs_kernels
@pytest.mark.parametrize("activation", SMOOTH)
def test_activations_are_those_of_torch(activation: str, isa: str) -> None:
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([-1e30, -200.0, -0.0, 1e-30, 200.0, 1e30])])
    graph = Graph("x", "y", [Elementwise("x", "y", activation=activation)])
    found = NativeProgram(graph)(x.view(1, 1, 1, -1)).flatten()
    expected = torch_steps.activate(x.double(), activation)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    assert NativeProgram(graph)(torch.full((1, 1, 1, 3), float("nan"))).isnan().all()


@needs_kernels
@pytest.mark.parametrize("activation", ["silu", "gelu", "hard_swish"])
@pytest.mark.parametrize(
    ("step", "size"),
    [
        (conv(5, 33, 3), (9, 7)),
        (conv(64, 48, 3), (13, 11)),
        (conv(96, 300, 3), (7, 7)),
        (conv(40, 24, 1), (14, 14)),
        (conv(40, 24, 1), (3, 5)),
        (conv(24, 24, 3, groups=24), (12, 17)),
        (conv(24, 24, 5, groups=24, stride=(2, 2)), (12, 17)),
        (conv(20, 20, 7, groups=20), (15, 9)),
        (conv(20, 20, 7, groups=20, stride=(2, 2)), (15, 6)),
        (conv(24, 12, 3, groups=4), (10, 9)),
        (conv(3, 16, 5, stride=(2, 2)), (21, 19)),
    ],
)
def test_convolutions_with_activations(step: Conv, size: tuple[int, int], activation: str) -> None:
    step = Conv(**{**vars(step), "activation": activation})
    check(Graph("x", "y", [step]), torch.randn(2, step.weight.shape[1] * step.groups, *size))


@needs_kernels
@pytest.mark.parametrize("activation", ["identity", "relu", *SMOOTH])
def test_winners_are_chosen_by_magnitudes_of_what_may_be_negative(activation: str) -> None:
    first = Conv("x", "a", torch.randn(16, 3, 3, 3), padding=(1, 1), activation=activation)
    boost = BoostSpec(torch.randn(20, 16), torch.ones(20), 5, torch.randn(20))
    check(
        Graph("x", "y", [first, Conv("a", "y", torch.randn(20, 16, 3, 3), boost=boost)]), torch.randn(2, 3, 9, 8), 1e-4
    )


@needs_kernels
@pytest.mark.parametrize("channels", [24, 264])
def test_a_network_takes_large_and_small_planes_in_turn(channels: int) -> None:
    """Weights are packed once more for planes of a few pixels."""
    model = nn.Sequential(
        *(nn.Conv2d(5, channels, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU(), nn.Conv2d(channels, 8, 1)),
    )
    convert_(model, DGCConfig(pruning_rate=0.5, preserve=False), lambda name, conv: name == "4")
    prepared = deploy.prepare(model.eval())
    for size in ((9, 12), (1, 1), (2, 2), (4, 4), (5, 5), (3, 7), (6, 6), (9, 12), (4, 4)):
        x = torch.randn(3, 5, *size)
        with torch.no_grad():
            torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)


@needs_kernels
def test_sums_for_a_gate_are_those_behind_the_activation() -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1), nn.GELU())
    model += nn.Sequential(nn.Conv2d(32, 32, 1))
    convert_(model, DGCConfig(pruning_rate=0.5, preserve=False))
    x = torch.randn(2, 3, 17, 14)
    torch.testing.assert_close(deploy.prepare(model.eval())(x), model(x), rtol=1e-4, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (8, 8), (19, 23)])
def test_factors_of_channels(size: tuple[int, int]) -> None:
    steps: list[Step] = [
        GlobalPool("x", "means"),
        Linear("means", "few", torch.randn(5, 37), torch.randn(5), "silu"),
        Linear("few", "scale", torch.randn(37, 5), None, "hard_sigmoid"),
        Elementwise("x", "y", factor="scale", other="x", activation="relu"),
    ]
    check(Graph("x", "y", steps), torch.randn(3, 37, *size))
    check(Graph("x", "y", [*steps[:3], Elementwise("x", "y", factor="scale")]), torch.randn(3, 37, *size))


@needs_kernels
@pytest.mark.parametrize("shape", [(2, 5, 1, 1), (1, 40, 9, 7), (3, 17, 16, 16), (1, 64, 3, 50), (2, 33)])
def test_layer_norms(shape: tuple[int, ...]) -> None:
    scale, shift = torch.randn(shape[1]), torch.randn(shape[1])
    check(Graph("x", "y", [LayerNorm("x", "y", scale, shift, 1e-6)]), torch.randn(shape) * 3 + 5)


@needs_kernels
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 9), (16, 5)])
@pytest.mark.parametrize(
    "how",
    [
        {"kind": "nearest", "scale": (2.0, 2.0)},
        {"kind": "nearest", "size": (5, 11)},
        {"kind": "bilinear", "scale": (2.0, 2.0)},
        {"kind": "bilinear", "scale": (1.7, 3.2)},
        {"kind": "bilinear", "size": (13, 4)},
        {"kind": "bilinear", "size": (13, 4), "aligns_corners": True},
        {"kind": "bilinear", "size": (1, 1), "aligns_corners": True},
    ],
)
def test_resampling(how: dict, size: tuple[int, int]) -> None:
    check(Graph("x", "y", [Resize("x", "y", **how)]), torch.randn(2, 5, *size))


@needs_kernels
def test_padding_and_some_channels() -> None:
    check(Graph("x", "y", [Pad("x", "y", (2, 0), (0, 3))]), torch.randn(2, 5, 4, 6))
    steps: list[Step] = [Slice("x", "a", 0, 3), Slice("x", "b", 3, 4), Concat(["b", "a", "b"], "y")]
    check(Graph("x", "y", steps), torch.randn(2, 7, 4, 6))
    check(Graph("x", "b", [Slice("x", "a", 2, 5), Slice("a", "b", 1, 2)]), torch.randn(3, 7, 4, 6))


@needs_kernels
@pytest.mark.parametrize("size", [(15, 16), (8, 9), (4, 4), (1, 2)])
@pytest.mark.parametrize(("kernel", "stride", "groups"), [(3, 2, 1), (5, 2, 24), (3, 3, 1), (1, 2, 1), (4, 1, 1)])
def test_padding_by_the_size_of_the_image(kernel: int, stride: int, groups: int, size: tuple[int, int]) -> None:
    step = Conv("x", "y", torch.randn(24, 24 // groups, kernel, kernel), stride=(stride,) * 2, groups=groups, same=True)
    x = torch.randn(2, 24, *size)
    assert NativeProgram(Graph("x", "y", [step]))(x).shape[2:] == (-(-size[0] // stride), -(-size[1] // stride))
    check(Graph("x", "y", [step]), x)


def test_what_cannot_be_is_told() -> None:
    weight, ones = torch.randn(4, 4, 1, 1), torch.ones(4)
    boost = BoostSpec(torch.randn(4, 4), ones, 2, ones)
    wrong: list[tuple[Step, str]] = [
        (Conv("x", "y", weight, boost=boost, activation="silu"), "winning outputs cannot have the activation silu"),
        (Conv("x", "y", weight, padding=(1, 1), same=True), "its padding is `same`, and a number too"),
        (Elementwise("x", "y", Norm(ones, ones), factor="x"), "its norm and factor cannot stand together"),
        (Resize("x", "y", "nearest"), "one of `size`, `scale` and `like`"),
        (Resize("x", "y", "nearest", scale=(1000.0, 1.0)), "`scale` must be from"),
        (Resize("x", "y", "nearest", scale=(float("nan"), 1.0)), "`scale` must be from"),
        (LayerNorm("x", "y", ones, torch.ones(3), 1e-5), "`shift` must have the shape"),
        (LayerNorm("x", "y", ones, ones, -1.0), "`epsilon` must be"),
        (Slice("x", "y", -1, 2), "`first` must be from 0"),
        (Pad("x", "y", (-1, 0), (0, 0)), "`padding` must be from 0"),
    ]
    for step, words in wrong:
        assert words in (problem(step) or ""), step
    with pytest.raises(UserError, match="has 4 channels; 5 are asked for"):
        NativeProgram(Graph("x", "y", [Slice("x", "y", 3, 2)]))(torch.randn(1, 4, 2, 2))


class Excited(nn.Module):
    """A block of an EfficientNet."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        self.mix = nn.Conv2d(wide, wide, kernel, padding=kernel // 2, groups=wide)
        self.down, self.up = nn.Conv2d(wide, 7, 1), nn.Conv2d(7, wide, 1)
        self.reduce = nn.Conv2d(wide, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.mix(self.expand(x)))
        scale = self.up(F.silu(self.down(F.adaptive_avg_pool2d(y, 1)))).sigmoid()
        return self.reduce(scale * y) + x


class ByRows(nn.Module):
    """Squeeze and excitation as SENet has it, of a residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.fc = nn.Sequential(nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        batch, channels, _, _ = y.size()
        scale = self.fc(y.mean((2, 3)).view(batch, channels)).view(batch, channels, 1, 1)
        return F.relu(y * scale.expand_as(y) + x)


class LastChannels(nn.Module):
    """A block of a ConvNeXt, with a scale for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.rand(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class Parts(nn.Module):
    """As a Res2Net and a ShuffleNet cut their channels."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, last = torch.split(x, 6, 1)
        second = self.convs[0](second)
        third = F.relu_(self.convs[1](third + second))
        return torch.cat([first, second, third, last], 1) + torch.cat([x[:, 12:], x.chunk(2, 1)[0]], 1)


class SmallUNet(nn.Module):
    """Segmentation, with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 24, 3, padding=1)
        self.bottom, self.up = nn.Conv2d(24, 32, 3, padding=1), nn.Conv2d(32 + 24, 24, 3, padding=1)
        self.last, self.classes = nn.Conv2d(24 + 16, 16, 3, padding=1), nn.Conv2d(16, 5, 1)
        self.side = nn.Conv2d(32, 5, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        a = F.relu(self.stem(x))
        b = F.relu(self.down(F.max_pool2d(a, 2)))
        c = F.relu(self.bottom(F.max_pool2d(b, 2)))
        y = F.relu(self.up(torch.cat([F.interpolate(c, scale_factor=2), b], 1)))
        y = F.interpolate(y, size=a.shape[-2:], mode="bilinear", align_corners=False)
        y = self.classes(F.relu(self.last(torch.cat([y, a], 1))))
        side = F.interpolate(self.side(c), size=x.shape[2:], mode="bilinear", align_corners=True)
        return {"out": y, "side": side}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {  # its channels, and how many steps torch may run
    "squeeze and excitation": (lambda: nn.Sequential(Excited(12, 3), Excited(12, 5)), 12, 0),
    "squeeze and excitation by rows": (lambda: nn.Sequential(ByRows(12), ByRows(12)), 12, 0),
    "layer norms": (lambda: nn.Sequential(LastChannels(24), LastChannels(24)), 24, 0),
    "parts": (lambda: nn.Sequential(nn.Conv2d(3, 24, 1), Parts(), Parts()), 3, 0),
    "padding": (lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(4, 8, 3, 2), nn.ZeroPad2d(2)), 4, 0),
    "segmentation": (SmallUNet, 3, 5),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, engine: str, tmp_path: Path) -> None:
    make, channels, left = NETWORKS[name]
    model = make().eval()
    prepared = deploy.prepare(model)
    for size in ((16, 24), (32, 8)):
        x = torch.randn(2, channels, *size)
        with torch.no_grad():
            torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)
    if engine == "native":
        assert len(prepared.report().left) == left, str(prepared.report())
    deploy.save(prepared, tmp_path)
    torch.testing.assert_close(deploy.load(tmp_path)(x), prepared(x), rtol=0, atol=0)


def test_a_segmentation_network_is_converted() -> None:
    model = SmallUNet().eval()
    x = torch.randn(1, 3, 32, 32)
    expected = model(x)
    report = convert_(model, DGCConfig(pruning_rate=0))
    assert {row.name for row in report.replaced} >= {"down", "bottom", "up", "last"}
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(deploy.prepare(model)(x), expected, rtol=1e-4, atol=1e-5)


def test_padding_is_not_handed_to_what_has_a_gate() -> None:
    """Its gate sees the mean of the padded planes."""
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ZeroPad2d((0, 3, 0, 2)), nn.Conv2d(8, 8, 3))
    convert_(model, DGCConfig(pruning_rate=0.5, preserve=False))
    x = torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(deploy.prepare(model.eval())(x), model(x), rtol=1e-4, atol=1e-5)


def test_in_int8_they_keep_working() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), Excited(16, 3), LastChannels(16), nn.Conv2d(16, 8, 1))
    images = torch.randn(8, 3, 24, 24)
    prepared = deploy.prepare(model.eval(), precision="int8", calibration=images, force=True)
    with torch.no_grad():
        expected = model(images)
    assert float((prepared(images) - expected).abs().max()) < 0.1 * float(expected.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["efficientnet_b0", "mobilenetv3_small_100", "convnext_atto", "tf_efficientnet_lite0", "res2net50_26w_4s"],
)
def test_timms_networks_are_native(name: str, timm) -> None:
    model = timm.create_model(name).eval()
    prepared, x = deploy.prepare(model), torch.randn(1, 3, 96, 90)
    with torch.no_grad():
        expected = model(x)
    assert float((prepared(x) - expected).abs().max()) <= 1e-4 * float(expected.abs().max())
    if native.available():
        assert not prepared.report().left
