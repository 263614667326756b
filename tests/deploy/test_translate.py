"""From a model's calls to fused steps: small models, each with something that is easy to get wrong."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgconv import DynamicGroupConv2d, StandardGroupConv2d, deploy
from dgconv.deploy.graph import Conv, Elementwise, Torch
from dgconv.errors import UserError
from dgconv.layers import FeatureBoostingConv2d
from dgconv.layers.fusible import BatchNormReLU2d
from dgconv.layers.indexed import IndexedGroupConv2d, SplitConv2d
from dgconv.ops import native


class Model(nn.Module):
    """A few layers for a forward that the test gives."""

    def __init__(self, forward: Callable[["Model", Tensor], object]) -> None:
        super().__init__()
        self.conv, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.square = DynamicGroupConv2d(8, 8, 1, pruning_rate=0.5)
        self.bn, self.bn2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.bn_relu = BatchNormReLU2d(8)
        self.relu, self.relu6 = nn.ReLU(inplace=True), nn.ReLU6(inplace=True)
        self.silu, self.drop = nn.SiLU(inplace=True), nn.Dropout(inplace=True)
        self.pool, self.fc, self.wide = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.rand(8, 1, 1))
        self.wider, self.narrower = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 4, 1)
        self.rows_norm, self.sync = nn.BatchNorm1d(8), nn.SyncBatchNorm(8)
        self._forward = forward
        for norm in (self.bn, self.bn2, self.bn_relu, self.rows_norm, self.sync):
            nn.init.uniform_(norm.weight, -1, 1)
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> object:
        return self._forward(self, x)


def chunked(m: Model, x: Tensor) -> Tensor:
    first, second = torch.split(m.conv(x), 4, 1)
    return second * first


def alias_sees_the_change(m: Model, x: Tensor) -> Tensor:
    x = m.conv(x)
    before = x
    m.relu(x)
    return m.square(before)


def shortcut_sees_the_change(m: Model, x: Tensor) -> Tensor:
    x = m.conv(x)
    return m.square(m.relu(x)) + x


def written_elsewhere(m: Model, x: Tensor) -> Tensor:
    x, other = m.conv(x), m.second(x)
    torch.mul(x, 2, out=other)
    return m.square(other)


def added_in_place(m: Model, x: Tensor) -> Tensor:
    x = m.conv(x)
    shortcut = x
    x += m.square(x)
    return m.square(x) + shortcut


def divided_in_place(m: Model, x: Tensor) -> Tensor:
    x = m.conv(x)
    whole, rest, mask = x.clone(), x.clone(), x > 0
    same_whole, same_rest, same_mask = whole, rest, mask
    whole //= 2
    rest %= 2
    mask ^= x > 0.5
    return same_whole + same_rest + same_mask


def squeeze_and_excite(m: Model, x: Tensor) -> Tensor:
    x = m.conv(x)
    scale = m.square(m.relu(m.square(x.mean((2, 3), keepdim=True)))).sigmoid()
    return m.square(scale * x) + x


def gate_of_rows(m: Model, x: Tensor) -> Tensor:
    """Squeeze and excitation as it is most often written, with a product in place of the addition behind it."""
    x = m.conv(x)
    batch, channels, _, _ = x.size()
    rows = m.relu(m.wide(m.pool(x).view(batch, channels)))
    return m.bn(x * m.wide(rows).sigmoid().view(batch, channels, 1, 1).expand_as(x))


def joined_alone(m: Model, x: Tensor) -> Tensor:
    """What ``cat`` returns is a copy, also of a single tensor."""
    x = m.conv(x)
    return m.square(torch.cat([x], 1).relu_()) + x


def changed_after_torch(m: Model, x: Tensor) -> Tensor:
    """The sigmoid is new memory, so its change in place reaches nobody else."""
    x = m.conv(x)
    scale = torch.sigmoid(x)
    return m.square(m.relu(scale)) + m.square(x)


def counted_on(m: Model, x: Tensor) -> Tensor:
    """A number that ``*=`` changes keeps its value under its other names."""
    x = m.conv(x)
    count = channels = x.size(1)
    count *= 2
    return m.square(torch.cat([x, x], 1).view(x.size(0), count, -1)[:, :channels].view(x.shape))


def pooled_and_changed(m: Model, x: Tensor) -> Tensor:
    """What flattens planes of one pixel is a view, too."""
    planes = m.pool(m.conv(x))
    rows = planes.flatten(1)
    planes *= 2
    return m.fc(rows)


def flattened_and_changed(m: Model, x: Tensor) -> Tensor:
    planes = m.conv(x).mean((2, 3), keepdim=True)
    m.relu(planes.flatten(1))
    return m.square(planes)


def dense_layer(m: Model, x: Tensor) -> Tensor:
    out, x, _ = m.bn_relu(m.conv(x), and_more=True)
    return torch.cat([x, m.square(out)], 1)


def branch_on_shape(m: Model, x: Tensor) -> Tensor:
    return m.conv(x) if x.shape[-1] > 5 else m.second(x)


MODELS: dict[str, tuple[Callable[[Model, Tensor], object], dict[str, int]]] = {
    "conv, norm, relu": (lambda m, x: m.relu(m.bn(m.conv(x))), {"Conv": 1}),
    "dynamic conv, norm, relu6": (lambda m, x: m.relu6(m.bn(m.square(m.conv(x)))), {"Conv": 2}),
    "synchronized norm": (lambda m, x: m.relu(m.sync(m.conv(x))), {"Conv": 1}),
    "norm of rows": (lambda m, x: m.rows_norm(m.conv(x).mean((2, 3))), {"Conv": 1, "GlobalPool": 1, "Elementwise": 1}),
    "norm of a sequence": (lambda m, x: m.rows_norm(m.conv(x).flatten(2)), {"Conv": 1, "Torch": 2}),
    "two norms": (lambda m, x: m.bn2(m.bn(m.conv(x))), {"Conv": 1}),
    "norm after relu": (lambda m, x: m.bn(m.relu(m.conv(x))), {"Conv": 1, "Elementwise": 1}),
    "norm after addition": (lambda m, x: m.bn(m.conv(x) + m.second(x)), {"Conv": 2, "Elementwise": 1}),
    "relu of relu6": (lambda m, x: F.relu(m.relu6(m.conv(x) * 9)), {"Conv": 1}),
    "relu6 of relu": (lambda m, x: F.relu6(m.relu(m.conv(x))), {"Conv": 1}),
    "two convolutions added": (lambda m, x: m.relu(m.bn(m.conv(x)) + m.bn2(m.second(x))), {"Conv": 2}),
    "added to itself": (lambda m, x: m.relu((c := m.conv(x)) + c), {"Conv": 1, "Elementwise": 1}),
    "added to its input": (lambda m, x: m.square(c := m.conv(x)) + c, {"Conv": 2}),
    "added twice": (lambda m, x: m.square(c := m.conv(x)) + c + c, {"Conv": 2, "Elementwise": 1}),
    "added to a norm, twice": (
        lambda m, x: m.bn(c := m.conv(x)) + F.silu(c) + c,
        {"Conv": 1, "Elementwise": 3},
    ),
    "norm plus value": (lambda m, x: m.bn(c := m.conv(x)) + m.square(c), {"Conv": 2, "Elementwise": 1}),
    "activation added": (lambda m, x: m.relu(m.conv(x)) + m.relu(m.second(x)), {"Conv": 2, "Elementwise": 1}),
    "multiple added": (lambda m, x: torch.add(m.conv(x), m.second(x), alpha=2), {"Conv": 2, "Torch": 1}),
    "number added": (lambda m, x: m.relu(m.conv(x) + 1), {"Conv": 1}),
    "broadcast addition": (
        lambda m, x: m.conv(x) + m.pool(m.second(x)),
        {"Conv": 2, "GlobalPool": 1, "Torch": 2},
    ),
    "broadcast addition of a pool with a window": (
        lambda m, x: m.square(F.avg_pool2d(c := m.conv(x), (7, 9))) + c,
        {"Conv": 2, "Pool": 1, "Torch": 1},
    ),
    "broadcast addition of one large window": (
        lambda m, x: m.square(c := m.conv(x)) + F.avg_pool2d(c, (7, 9), 1),
        {"Conv": 2, "Pool": 1, "Torch": 1},
    ),
    "broadcast addition of one channel": (
        lambda m, x: m.wider(one := x[:, :1]) + F.max_pool2d(one, 3, 1, 1),
        {"Conv": 1, "Pool": 1, "Torch": 2},
    ),
    "added to the image": (lambda m, x: m.narrower(m.conv(x)) + x, {"Conv": 2}),
    "equal strides added": (
        lambda m, x: m.square(F.avg_pool2d(c := m.conv(x), 2)) + F.max_pool2d(c, 3, 2),
        {"Conv": 2, "Pool": 2},
    ),
    "parameter in use": (lambda m, x: m.conv(x) * m.scale, {"Conv": 1}),
    "norm with two readers": (
        lambda m, x: m.square(n := m.bn_relu(m.conv(x) + m.second(x))) + m.square(n),
        {"Conv": 4},
    ),
    "norm handed to two": (
        lambda m, x: torch.cat([m.square(n := m.bn_relu((c := m.conv(x)) + c)), m.square(n)], 1),
        {"Conv": 3, "Elementwise": 1, "Concat": 1},
    ),
    "dense layer": (dense_layer, {"Conv": 2, "Concat": 1}),
    "joined with itself": (lambda m, x: torch.cat([c := m.conv(x), c], 1), {"Conv": 1, "Concat": 1}),
    "joined along the rows": (lambda m, x: torch.cat([c := m.conv(x), c], 2), {"Conv": 1, "Torch": 1}),
    "shared convolution": (lambda m, x: m.square(m.square(m.conv(x))), {"Conv": 3}),
    "alias of a changed value": (alias_sees_the_change, {"Conv": 2}),
    "shortcut of a changed value": (shortcut_sees_the_change, {"Conv": 2}),
    "added in place": (added_in_place, {"Conv": 3}),
    "divided in place": (divided_in_place, {}),
    "relu in place by position": (lambda m, x: F.relu(c := m.conv(x), True) + c, {"Conv": 1, "Elementwise": 1}),
    "relu_": (lambda m, x: torch.relu_(c := m.conv(x)) + c, {"Conv": 1, "Elementwise": 1}),
    "mul_": (lambda m, x: m.square((c := m.conv(x)).mul_(2)) + c, {"Conv": 2}),
    "silu in place": (lambda m, x: m.square(m.silu(c := m.conv(x))) + c, {"Conv": 2}),
    "dropout in place": (lambda m, x: m.relu(m.drop(m.conv(x))), {"Conv": 1}),
    "functional dropout": (lambda m, x: F.dropout(m.conv(x), 0.5, m.training), {"Conv": 1}),
    "view of a changed value": (lambda m, x: ((c := m.conv(x)).flatten(2), m.relu(c))[0], {"Torch": 1}),
    "rows of a changed value": (pooled_and_changed, {"Torch": 1}),
    "planes of a changed value": (flattened_and_changed, {"Torch": 1}),
    "a part is assigned to": (lambda m, x: (c := m.conv(x)).__setitem__(0, 1.0) or c, {"Torch": 1}),
    "changed after torch computed it": (changed_after_torch, {"Conv": 3, "Elementwise": 1}),
    "number changed in place": (counted_on, {"Conv": 2, "Concat": 1, "Torch": 5}),
    "joined alone, then changed": (joined_alone, {"Conv": 2, "Concat": 1}),
    "squeeze and excite with rows": (
        gate_of_rows,
        {"Conv": 1, "GlobalPool": 1, "Linear": 2, "Elementwise": 2},
    ),
    "squeeze and excite": (squeeze_and_excite, {"Conv": 4, "GlobalPool": 1, "Torch": 2}),
    "chunks": (chunked, {"Conv": 1, "Slice": 2, "Torch": 1}),
    "branch on the shape": (branch_on_shape, {"Torch": 1}),
    "flatten(1)": (lambda m, x: m.fc(m.pool(m.conv(x)).flatten(1)), {"Conv": 1, "GlobalPool": 1, "Linear": 1}),
    "view(size(0), -1)": (
        lambda m, x: m.fc((p := m.pool(m.conv(x))).view(p.size(0), -1)),
        {"Conv": 1, "GlobalPool": 1, "Linear": 1},
    ),
    "view(size(0) of another, -1)": (
        lambda m, x: m.fc(m.pool(c := F.max_pool2d(m.conv(x), 2)).view(c.size(0), -1)),
        {"Conv": 1, "Pool": 1, "GlobalPool": 1, "Linear": 1},
    ),
    "view(size(0), size(1))": (
        lambda m, x: m.fc((p := m.pool(m.conv(x))).view(p.size(0), p.size(1))),
        {"Conv": 1, "GlobalPool": 1, "Linear": 1},
    ),
    "view(-1, 8)": (
        lambda m, x: m.fc(m.pool(m.conv(x)).view(-1, 8)),
        {"Conv": 1, "GlobalPool": 1, "Torch": 2, "Linear": 1},
    ),
    "rows[:, :, None, None]": (
        lambda m, x: m.square(m.conv(x).mean((2, 3))[:, :, None, None]),
        {"Conv": 2, "GlobalPool": 1, "Torch": 1},
    ),
    "view()": (lambda m, x: m.conv(x)[0, 0, 0, 0].view(()), {"Conv": 1, "Torch": 2}),
    "reshape(shape[0], -1)": (
        lambda m, x: m.fc((p := m.pool(m.conv(x))).reshape(p.shape[0], -1)),
        {"Conv": 1, "GlobalPool": 1, "Linear": 1},
    ),
    "mean([-1, -2])": (lambda m, x: m.fc(m.conv(x).mean([-1, -2])), {"Conv": 1, "GlobalPool": 1, "Linear": 1}),
    "mean(1)": (lambda m, x: m.conv(x).mean(1), {"Conv": 1, "Torch": 1}),
    "linear and relu": (
        lambda m, x: F.relu(m.fc(m.conv(x).mean((2, 3)))),
        {"Conv": 1, "GlobalPool": 1, "Linear": 1},
    ),
    "flattened planes": (lambda m, x: F.linear(m.conv(x).flatten(1), m.fc.weight[:, :1].expand(5, 8 * 63)), {}),
    "linear on planes": (lambda m, x: m.fc(m.conv(x).permute(0, 2, 3, 1)), {"Conv": 2, "Torch": 1}),
    "relu of the image": (lambda m, x: m.conv(F.relu(x)), {"Conv": 1}),
    "the image itself": (lambda m, x: x, {}),
    "norm of the image": (lambda m, x: F.relu(m.bn(torch.cat([x, x], 1))), {"Concat": 1, "Elementwise": 1}),
    "max_pool2d": (lambda m, x: F.max_pool2d(m.conv(x), 3, 2, padding=1), {"Conv": 1, "Pool": 1}),
    "max_pool2d, ceil": (lambda m, x: F.max_pool2d(m.conv(x), 2, ceil_mode=True), {"Conv": 1, "Torch": 1}),
    "avg_pool2d": (lambda m, x: F.avg_pool2d(m.conv(x), (2, 3), 1, 1), {"Conv": 1, "Pool": 1}),
    "avg_pool2d, no padding counted": (
        lambda m, x: F.avg_pool2d(m.conv(x), 3, 1, 1, count_include_pad=False),
        {"Conv": 1, "Torch": 1},
    ),
    "pool of a norm": (
        lambda m, x: F.max_pool2d(m.bn_relu(torch.cat([x, x], 1)), 2),
        {"Concat": 1, "Pool": 1},
    ),
    "batch statistics": (
        lambda m, x: F.batch_norm(m.conv(x), None, None, training=True),
        {"Conv": 1, "Torch": 1},
    ),
    "conv2d": (lambda m, x: F.conv2d(x, m.conv.weight * 2, None, 2, 1, groups=1), {"Conv": 1}),
    "written into a given tensor": (written_elsewhere, {"Torch": 1}),
    "two outputs": (lambda m, x: (m.conv(x), m.second(x)), {"Conv": 2, "Torch": 1}),
    "one output, twice": (lambda m, x: [m.relu(c := m.conv(x)), {"again": c}], {"Conv": 1, "Torch": 1}),
    "an output and a number": (lambda m, x: (m.relu(m.conv(x)), 3), {"Conv": 1, "Torch": 1}),
    "a number": (lambda m, x: 3, {"Torch": 1}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("forward", "steps"), MODELS.values(), ids=MODELS)
def test_computes_the_same(engine: str, forward: Callable, steps: dict[str, int]) -> None:
    model = Model(forward).eval()
    prepared, x = deploy.prepare(model), torch.randn(2, 4, 7, 9)
    with torch.no_grad():
        expected = model(x.clone())
        actual = prepared(x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    if steps:
        assert Counter(type(step).__name__ for step in prepared.graph.steps) == steps


LAYERS = {
    "same": nn.Conv2d(4, 6, (4, 3), padding="same", dilation=2),
    "strided": nn.Conv2d(4, 6, 3, (2, 1), (0, 2), groups=2),
    "depthwise": nn.Conv2d(4, 8, 3, padding=1, groups=4),
    "reflect": nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
    "weight norm": nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3)),
    "shuffled": StandardGroupConv2d(4, 12, 3, groups=2, bias=True),
    "dynamic": DynamicGroupConv2d(4, 12, (2, 3), (2, 1), 1, 2, heads=3, bias=True, pruning_rate=0.5),
    "dynamic, same": DynamicGroupConv2d(4, 8, 4, padding="same", heads=2),
    "global": DynamicGroupConv2d(4, 8, 3, heads=2, gate="global"),
    "boosted": FeatureBoostingConv2d(4, 8, 3, density=0.5),
    "norm": nn.BatchNorm2d(4, affine=False),
    "momentary norm": nn.BatchNorm2d(4, track_running_stats=False),
}


@pytest.mark.parametrize(
    ("layer", "threshold"),
    [*((layer, 0.7) for layer in LAYERS.values()), (LAYERS["global"], 99.0)],
    ids=[*LAYERS, "global, nothing kept"],
)
def test_single_layers_followed_by_a_norm(engine: str, layer: nn.Module, threshold: float) -> None:
    channels = getattr(layer, "out_channels", 4)
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.weight, -1, 1)
    nn.init.normal_(norm.bias)
    if isinstance(layer, DynamicGroupConv2d):
        nn.init.normal_(layer.generator.bias)
        if hasattr(layer.gate, "threshold"):
            layer.gate.threshold.fill_(threshold)
    model = nn.Sequential(layer, norm, nn.ReLU()).eval()
    x = torch.randn(3, 4, 10, 11)
    torch.testing.assert_close(deploy.prepare(model)(x), model(x), rtol=1e-4, atol=1e-5)


STATIC = {
    "picked": IndexedGroupConv2d(
        nn.Conv2d(4, 6, 3, 2), torch.tensor([3, 0, 1, 2]), torch.randn(6, 2, 3, 3), torch.randn(6), groups=2
    ),
    "split": SplitConv2d(
        nn.Conv2d(4, 6, 3, padding=1),
        [(torch.tensor([2, 0]), torch.tensor([5, 1, 3])), (torch.tensor([1]), torch.tensor([0]))],  # 2 and 4 in none
        torch.randn(6, 4, 3, 3),
        torch.randn(6),
    ),
}


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("adds", [False, True])
def test_static_groups(engine: str, name: str, adds: bool) -> None:
    """What learned groups become; the norm, the addition and the activation behind them take no steps of their own."""
    layer, norm = STATIC[name], nn.BatchNorm2d(6)
    nn.init.uniform_(norm.weight, -1, 1)
    nn.init.normal_(norm.bias)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer, self.norm = nn.Conv2d(3, 4, 1), layer, norm
            self.short = nn.Conv2d(4, 6, 3, 2) if name == "picked" else nn.Conv2d(4, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            out = self.norm(self.layer(x))
            return F.relu(self.short(x) + out if adds else out)

    model, x = Block().eval(), torch.randn(3, 3, 10, 11)
    prepared = deploy.prepare(model)
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)
    own = {"picked": {"Conv": 1}, "split": {"Conv": 2, "Concat": 1, "Elementwise": 1}}[name]
    others = 2 if adds else 1
    assert Counter(type(step).__name__ for step in prepared.graph.steps) == Counter(own) + Counter(Conv=others)
    assert any(step.picks for step in prepared.graph.steps if isinstance(step, Conv))


def test_the_order_of_split_outputs_is_not_handed_on(engine: str) -> None:
    """A convolution takes in the norm before it, but not the order that this norm brings its channels into."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), STATIC["split"], nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 1)).eval()
    x = torch.randn(3, 3, 10, 11)
    torch.testing.assert_close(deploy.prepare(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_an_addition_keeps_the_order_of_split_outputs(engine: str) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer, self.norm = nn.Conv2d(3, 4, 1), STATIC["split"], nn.BatchNorm2d(6)
            self.short = nn.Conv2d(4, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.norm(self.layer(x)) + F.silu(self.short(x))

    model, x = Block().eval(), torch.randn(3, 3, 10, 11)
    torch.testing.assert_close(deploy.prepare(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_reasons_are_given() -> None:
    model = nn.Sequential(LAYERS["reflect"], nn.Mish(), LAYERS["momentary norm"], nn.AdaptiveAvgPool2d(3))
    model[2] = nn.BatchNorm2d(6, track_running_stats=False)
    steps = deploy.prepare(model.eval()).graph.steps
    assert all(isinstance(step, Torch) for step in steps)
    assert [step.reason for step in steps] == [
        "padding_mode 'reflect'",
        "no native step for Mish",
        "it uses the statistics of each batch",
        "pooling to 3",
    ]


@pytest.mark.parametrize("name", ["relu", "identity"])
def test_a_convolution_behind_a_step_of_torch_stays_native(name: str) -> None:
    """It cannot read its own input and the one that it would add, both from beyond that step; torch then adds."""

    def forward(m: Model, x: Tensor) -> Tensor:
        x = m.conv(x)
        for _ in range(2):
            x = m.square(m.square(F.mish(x))) + x
            x = F.relu(x) if name == "relu" else x
        return x

    model, x = Model(forward).eval(), torch.randn(2, 4, 7, 9)
    prepared = deploy.prepare(model)
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)
    if native.available():
        runs = {(row.step.partition(",")[0], row.runs) for row in prepared.report().rows}
        dynamic = {how for step, how in runs if step.startswith("1x1 dynamic convolution")}
        assert dynamic == {"native"}


def test_of_two_convolutions_the_later_one_adds() -> None:
    graph = deploy.prepare(Model(lambda m, x: m.conv(x) + m.second(x)).eval()).graph
    first, second = graph.steps
    assert isinstance(second, Conv)
    assert (first.label, second.label) == ("conv", "second + add")
    assert second.residual == first.output


def test_an_earlier_convolution_adds_where_the_later_one_cannot() -> None:
    def forward(m: Model, x: Tensor) -> Tensor:
        first, second = m.conv(x), F.relu(m.second(x))
        return first + second

    graph = deploy.prepare(Model(forward).eval()).graph
    first, second = graph.steps
    assert isinstance(second, Conv)
    assert (first.label, second.label) == ("second + relu", "conv + add")
    assert second.residual == first.output


def test_a_result_that_is_read_again_is_not_fused_away() -> None:
    graph = deploy.prepare(Model(lambda m, x: m.square(c := m.conv(x)) * c).eval()).graph
    assert [type(step) for step in graph.steps] == [Conv, Conv, Torch]
    graph = deploy.prepare(Model(lambda m, x: F.relu(m.bn(c := m.conv(x))) * c).eval()).graph
    assert [type(step) for step in graph.steps] == [Conv, Elementwise, Torch]


def test_a_part_that_changes_its_input_is_left_to_python(engine: str) -> None:
    class Careless(nn.Module):
        """Ignores what its first part returns, which is right as long as that works in place."""

        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1))

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            self.block(x)
            return x if x.sum() > 0 else -x

    model, x = Careless().eval(), torch.randn(1, 4, 5, 5)
    prepared = deploy.prepare(model)
    assert [path for path, _ in prepared.inner] == ["Careless.block.1"]
    torch.testing.assert_close(prepared(x), x.relu())


class Opaque(nn.Module):
    """Changes what it is given, in a way that no trace can follow."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu_() if x.sum() > -1e9 else x


@pytest.mark.parametrize("reads", ["conv", "norm", "norm, twice", "expansion"])
def test_no_read_moves_past_code_that_changes_the_value(engine: str, reads: str) -> None:
    def forward(m: Model, x: Tensor) -> Tensor:
        x = m.conv(x)
        if reads == "conv":  # the convolution must not move down to the norm that it could take in
            before, changed = m.square(x), m.opaque(x)
            return m.bn(before) + changed
        if reads == "expansion":  # must not move down to the depthwise convolution
            before, changed = m.expand(x), m.opaque(x)
            return m.depthwise(before) + changed.sum()
        before = m.bn(x)
        early = m.square(before) if reads == "norm, twice" else 0
        changed = m.opaque(x)  # the norm must not move into the convolution behind
        return m.square(before) + changed + early

    model = Model(forward)
    model.opaque = Opaque()
    model.expand, model.depthwise = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
    model.eval()
    x = torch.randn(2, 4, 7, 9)
    torch.testing.assert_close(deploy.prepare(model)(x), model(x), rtol=1e-4, atol=1e-5)


class PadsTheDifference(nn.Module):
    """As U-Nets do where sizes are odd: what is missing is computed from both sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.first(x))
        b = self.up(F.relu(self.second(F.max_pool2d(a, 2))))
        down, right = a.size(2) - b.size()[2], a.shape[3] - b.shape[-1]
        b = F.pad(b, [right // 2, right - right // 2, down // 2, down - down // 2])
        if b.shape[-1] != a.shape[-1] or down < 0:
            raise ValueError("they differ")
        return self.last(torch.cat([a, b], dim=1)).view(x.size(0), 4, -1).mean(2)


class Branches(nn.Module):
    """Pools only what is small, and leaves the number of images open."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(3, 8, 3, padding=1), nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        assert channels == 3
        x = self.conv(x) * self.scale.view(1, -1, 1, 1)
        if height < 10 or width < 10:
            x = F.interpolate(x, (2 * height, 2 * width))
        return F.relu(x).mean((2, 3)).view(batch, -1)


@pytest.mark.parametrize("make", [PadsTheDifference, Branches])
def test_code_that_looks_at_sizes_is_followed_with_an_example(make: type[nn.Module], engine: str, tmp_path) -> None:
    model, x = nn.Sequential(make(), nn.Identity()).eval(), torch.randn(3, 3, 9, 13)
    assert any("cannot be followed" in row.reason for row in deploy.prepare(model).report().left)
    before = x.clone()
    prepared = deploy.prepare(model, example=x)
    assert torch.equal(x, before)
    with torch.no_grad():
        torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)
    if make is Branches and engine == "native":
        assert all(row.step == "Tensor.size" for row in prepared.report().left)
    deploy.save(prepared, tmp_path)
    loaded = deploy.load(tmp_path)
    torch.testing.assert_close(loaded(x[:1]), prepared(x)[:1], rtol=1e-4, atol=1e-5)
    for one in (prepared, loaded):
        with pytest.raises(UserError, match="prepared for images of 9 x 13 pixels"):
            one(torch.randn(1, 3, 12, 12))


def test_an_example_does_not_bind_what_does_not_look_at_sizes() -> None:
    prepared = deploy.prepare(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), example=torch.randn(1, 3, 8, 8))
    assert prepared.graph.size is None
    assert prepared(torch.randn(1, 3, 5, 6)).shape == (1, 4, 5, 6)


def test_an_example_may_overflow() -> None:
    """It is there for its size. Zeros overflow in an untrained network, whose batch norms have seen no zeros."""
    model = nn.Sequential(DynamicGroupConv2d(8, 8, 1), nn.BatchNorm2d(8), DynamicGroupConv2d(8, 8, 1)).eval()
    nn.init.constant_(model[1].weight, torch.inf)
    prepared = deploy.prepare(model, example=torch.ones(1, 8, 4, 4))
    assert prepared.report().rows


def test_what_depends_on_values_is_left_with_an_example_too() -> None:
    class ByValue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) if x.mean() > 0 else x[:, :1]

    model, x = nn.Sequential(nn.Conv2d(3, 3, 1), ByValue()).eval(), torch.randn(2, 3, 5, 5)
    prepared = deploy.prepare(model, example=x)
    for image in (x, x + 9, x - 9):
        torch.testing.assert_close(prepared(image), model(image))


@pytest.mark.parametrize(
    "example", [3, torch.randn(3, 4, 4), torch.zeros(1, 3, 4, 4).double(), torch.zeros(0, 3, 4, 4)]
)
def test_examples_that_are_none(example: object) -> None:
    with pytest.raises(UserError, match="`example` must be images"):
        deploy.prepare(nn.Conv2d(3, 4, 1).eval(), example=example)


def test_an_example_that_the_model_does_not_take() -> None:
    with pytest.raises(UserError, match="the model does not take the example"):
        deploy.prepare(nn.Conv2d(3, 4, 1).eval(), example=torch.zeros(1, 5, 4, 4))
