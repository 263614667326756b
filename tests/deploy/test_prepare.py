"""prepare: whole networks, what is fused in them, and how a prepared model behaves."""

import copy
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from small_models import images_for, names_with, small_model
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils import parametrizations, prune

from dgconv import DGCConfig, DynamicGroupConv2d, convert_, create_model, deploy, set_pruning_rate
from dgconv.bench.timing import threads_restored
from dgconv.deploy.graph import Conv, Elementwise, Graph, Pool, Torch
from dgconv.errors import UserError
from dgconv.layers import HeadGate, MethodLayer, SaliencyGenerator, to_static_
from dgconv.layers.gate import Gate
from dgconv.layers.odd_pixels import OddPixels
from dgconv.layers.select import dynamic_layers
from dgconv.ops import native
from dgconv.train import set_progress

TOLERANCE = 1e-4
MANY_LAYERS = 40


@torch.no_grad()
def settled(model: nn.Module, images: Tensor) -> nn.Module:
    """A fresh network in eval mode whose numbers stay ordinary: each batch norm knows what it is given.

    The saliencies are drawn towards 1: they multiply, and a fresh network would be chaotic.
    """

    def learn(norm: nn.BatchNorm2d, arguments: tuple[Tensor]) -> None:
        variance, mean = torch.var_mean(arguments[0], (0, 2, 3), correction=0)
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance.mean() + 0.5 * variance)  # no channel is made much louder

    for _, layer in dynamic_layers(model):
        layer.generator.weight2.mul_(0.1)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        if norm.affine:
            nn.init.uniform_(norm.weight, 0.5, 1)
            nn.init.normal_(norm.bias, std=0.1)
    hooks = [norm.register_forward_pre_hook(learn) for norm in norms]
    model.eval()(images)
    for hook in hooks:
        hook.remove()
    return model


def relative_errors(actual: Tensor, expected: Tensor) -> Tensor:
    """Of each image."""
    return (actual - expected).flatten(1).abs().amax(1) / expected.flatten(1).abs().amax(1)


def kinds(graph: Graph) -> Counter[str]:
    return Counter(type(step).__name__ for step in graph.steps)


def small(name: str) -> tuple[nn.Module, Tensor]:
    model = small_model(name)
    images = images_for(model, 4)
    return settled(model, images), images[:3]


def assert_same_function(model: nn.Module, prepared: nn.Module, images: Tensor) -> None:
    """Together and one by one.

    Two saliencies that are equal but for rounding may change places, and the image then gets another result. It is
    rare: of three images one may, if the model chooses at all, and two where it does so in dozens of layers (in double
    precision torch itself gives as many of them another result).
    """
    with torch.no_grad():
        expected = model(images)
    together, single = prepared(images), torch.cat([prepared(image[None]) for image in images])
    chooses = sum(isinstance(layer, DynamicGroupConv2d | MethodLayer) for layer in model.modules())
    needed = len(images) - (0 if not chooses else 1 if chooses < MANY_LAYERS else 2)
    for actual in (together, single):
        assert actual.shape == expected.shape
        assert int((relative_errors(actual, expected) < TOLERANCE).sum()) >= needed


# --- whole networks ---


OURS = names_with("", "sgc", "dgc", "dgcg")


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_every_model_is_native_and_computes_the_same(name: str) -> None:
    model, images = small(name)
    prepared = deploy.prepare(model)
    assert_same_function(model, prepared, images)
    steps = kinds(prepared.graph)
    assert "Torch" not in steps
    is_branched = name.startswith(("shufflenet", "nasnet"))  # so that not all could be joined to a convolution
    assert is_branched or "Elementwise" not in steps
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d | DynamicGroupConv2d | OddPixels)]
    joined = [step for step in prepared.graph.steps if isinstance(step, Conv) and step.expansion]  # two in one step
    assert steps["Conv"] + len(joined) == len(convs)
    if native.available():
        assert not prepared.report().left
        assert len(prepared._runs) == 1  # one program


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lgc", "flgc", "fbs", "cgnet", "lccn"])
def test_rivals_compute_the_same(method: str) -> None:
    """Native or not: in their static form, where they have one."""
    model, images = small(f"resnet20_{method}")
    for layer in model.modules():
        if isinstance(layer, MethodLayer):
            layer.before_step(1)  # where training ends
    to_static_(model)
    prepared = deploy.prepare(model)
    assert_same_function(model, prepared, images)
    if native.available():
        assert (not prepared.report().left) == (method in ("lgc", "flgc", "fbs"))  # the others are listed


@pytest.mark.parametrize("name", ["resnet20_dgc", "resnet20_dgcg", "resnet20_sgc", "condensenet20_dgc"])
def test_without_native_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_find", lambda: "the native kernels are not in use: they were taken away")
    model, images = small(name)
    prepared = deploy.prepare(model)
    assert {row.reason for row in prepared.report().rows} == {"no native kernels"}
    assert "the native kernels are not in use: they were taken away" in " ".join(str(prepared.report()).split())
    assert_same_function(model, prepared, images)


NETWORKS = {
    "torchvision/resnet18": {"Conv", "Pool", "GlobalPool", "Linear"},
    "torchvision/densenet121": {"Conv", "Pool", "Concat", "GlobalPool", "Linear"},
    "torchvision/mobilenet_v2": {"Conv", "GlobalPool", "Linear"},
    "timm/resnet50": {"Conv", "Pool", "GlobalPool", "Linear"},
    "timm/efficientnet_b0": {"Conv", "Elementwise", "GlobalPool", "Linear"},
    "timm/tf_efficientnet_b0": {"Conv", "Elementwise", "GlobalPool", "Linear"},  # pads as the image's size asks
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), NETWORKS.items())
def test_converted_networks(torchvision_models, timm, name: str, expected: set[str]) -> None:
    library, model_name = name.split("/")
    if library == "torchvision":
        model = getattr(torchvision_models, model_name)(weights=None, num_classes=7)
    else:
        model = timm.create_model(model_name, num_classes=7)
    convert_(model, DGCConfig(pruning_rate=0.5))
    for _, layer in dynamic_layers(model):
        nn.init.uniform_(layer.generator.bias, 0.5, 1.5)  # each head chooses others, the same for every image
    images = torch.randn(4, 3, 64, 64)
    settled(model, images)
    prepared = deploy.prepare(model)
    assert set(kinds(prepared.graph)) == expected
    assert kinds(prepared.graph)["Conv"] >= len(list(dynamic_layers(model)))
    with torch.no_grad():
        assert relative_errors(prepared(images), model(images)).max() < TOLERANCE


def test_layers_of_a_residual_block_become_three_steps() -> None:
    prepared = deploy.prepare(create_model("resnet20_dgc").eval())
    first, second = prepared.graph.steps[1:3]
    assert isinstance(first, Conv)
    assert isinstance(second, Conv)
    assert first.label == "layer1.0.conv1 + layer1.0.bn1 + layer1.0.relu"
    assert second.label == "layer1.0.conv2 + layer1.0.bn2 + layer1.0.add + layer1.0.relu"
    assert (first.residual, second.residual) == (None, first.input)
    assert first.activation == second.activation == "relu"
    assert first.gate is not None
    assert (first.gate.keep, first.gate.threshold) == (4, None)


def test_norms_of_a_dense_layer_move_into_both_convolutions() -> None:
    prepared = deploy.prepare(create_model("condensenet20_dgcg").eval())
    by_label = {step.label.split(" + ")[0]: step for step in prepared.graph.steps}
    pointwise = by_label["stages.0.norm1"]
    assert isinstance(pointwise, Conv)
    assert pointwise.label == "stages.0.norm1 + stages.0.conv1 + stages.0.norm2"
    assert pointwise.before is not None
    assert pointwise.before.activation == pointwise.activation == "relu"
    assert by_label["norm"].label == "norm + pool.0"  # the last one is done while pooling


def test_a_depthwise_convolution_takes_in_the_expansion_before_it() -> None:
    class Block(nn.Module):
        def __init__(self, shares_hidden: bool) -> None:
            super().__init__()
            self.expand, self.norm = nn.Conv2d(8, 32, 1), nn.BatchNorm2d(32)
            self.depthwise, self.shares_hidden = nn.Conv2d(32, 32, 3, 2, 1, groups=32), shares_hidden

        def forward(self, x: Tensor) -> Tensor:
            hidden = nn.functional.relu6(self.norm(self.expand(x)))
            y = self.depthwise(hidden)
            return y + hidden[:, :, ::2, ::2] if self.shares_hidden else y

    images = torch.randn(2, 8, 15, 18)
    for shares_hidden in (False, True):
        model = Block(shares_hidden).eval()
        prepared = deploy.prepare(model)
        joined = [step for step in prepared.graph.steps if isinstance(step, Conv) and step.expansion]
        assert len(joined) == (not shares_hidden)
        assert_same_function(model, prepared, images)
        if joined:
            assert [row.step for row in prepared.report().rows] == [
                "1x1 convolution, relu6, then 3x3 convolution, 32 groups"
            ]


def test_a_dilated_depthwise_convolution_stays_by_itself() -> None:
    depthwise = nn.Conv2d(32, 32, 3, padding=2, dilation=2, groups=32)
    model = nn.Sequential(nn.Conv2d(8, 32, 1), nn.ReLU6(), depthwise).eval()
    prepared = deploy.prepare(model)
    assert len(prepared.graph.steps) == 2
    assert_same_function(model, prepared, torch.randn(2, 8, 15, 18))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (nn.Conv2d(8, 32, 1, groups=2), nn.Conv2d(32, 32, 3, groups=32)),
        (nn.Conv2d(8, 32, 1, padding=1), nn.Conv2d(32, 32, 3, groups=32)),
        (nn.Conv2d(8, 32, 1, stride=2), nn.Conv2d(32, 32, 3, groups=32)),
        (nn.Conv2d(8, 32, 1), nn.Conv2d(32, 32, 9, groups=32)),
        (nn.Conv2d(8, 32, 1), nn.Conv2d(32, 32, 3, 3, groups=32)),
        (nn.Conv2d(8, 32, 1), nn.Conv2d(32, 64, 3, groups=32)),
        (nn.Conv2d(8, 15, 1), nn.Conv2d(15, 15, 3, groups=15)),
    ],
)
def test_what_no_kernel_joins_stays_apart(first: nn.Conv2d, then: nn.Conv2d) -> None:
    model = nn.Sequential(first, nn.ReLU(), then).eval()
    prepared = deploy.prepare(model)
    assert len(prepared.graph.steps) == 2
    assert_same_function(model, prepared, torch.randn(2, 8, 21, 24))


def test_a_depthwise_convolution_takes_in_the_first_of_a_network() -> None:
    for channels, is_joined in ((3, True), (16, False)):
        first, then = nn.Conv2d(channels, 24, 3, 2, 1, bias=False), nn.Conv2d(24, 24, 3, 1, 1, groups=24)
        model = nn.Sequential(first, nn.BatchNorm2d(24), nn.ReLU6(), then, nn.ReLU()).eval()
        prepared = deploy.prepare(model)
        assert len(prepared.graph.steps) == (1 if is_joined else 2)
        assert_same_function(model, prepared, torch.randn(2, channels, 31, 44))


@pytest.mark.parametrize(("outputs", "groups", "is_picked"), [(300, 1, True), (256, 1, False), (300, 4, False)])
def test_pixels_of_a_wide_convolution_with_a_stride_are_picked_once(outputs: int, groups: int, is_picked: bool) -> None:
    conv = nn.Conv2d(12, outputs, 1, (2, 3), groups=groups)
    for layers in ([conv], [nn.BatchNorm2d(12), nn.ReLU(), conv, nn.ReLU()]):  # a norm and what follows it goes along
        model = settled(nn.Sequential(*layers), torch.randn(4, 12, 9, 11))
        prepared = deploy.prepare(model)
        steps = prepared.graph.steps
        assert [type(step) for step in steps] == [*[Pool] * is_picked, Conv]
        assert (steps[0].before is None) == (len(layers) == 1)
        assert_same_function(model, prepared, torch.randn(2, 12, 9, 11))


def test_pre_norm_variant_has_no_norm_left() -> None:
    model = create_model("resnet20_dgc", pre_norm=True)
    images = torch.randn(4, 3, 32, 32)
    settled(model, images)
    prepared = deploy.prepare(model)
    assert set(kinds(prepared.graph)) == {"Conv", "GlobalPool", "Linear"}
    assert_same_function(model, prepared, images[:3])


def test_the_rate_of_the_moment_is_taken() -> None:
    model, images = small("condensenet20_dgc")
    set_pruning_rate(model, 0.25)
    now = deploy.prepare(model)
    assert_same_function(model, now, images)
    set_pruning_rate(model, 0.5)
    with torch.no_grad():
        assert relative_errors(now(images), model(images)).min() > 1e-2
    assert_same_function(model, deploy.prepare(model), images)


# --- how it behaves ---


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, deploy.PreparedModel, Tensor]:
    torch.manual_seed(0)
    model, images = small("condensenet20_dgc")
    return model, deploy.prepare(model), images


def test_the_original_is_left_alone(digits) -> None:
    model, _, images = digits
    model, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    prepared = deploy.prepare(model)
    first = prepared(images)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(prepared(images), first)


def test_has_nothing_to_train(digits) -> None:
    _, prepared, images = digits
    assert not list(prepared.parameters())
    assert not prepared(images.clone().requires_grad_()).requires_grad
    assert prepared.eval() is prepared
    with pytest.raises(UserError, match="does not train"):
        prepared.train()


def test_layouts_and_batches(digits) -> None:
    _, prepared, images = digits
    expected = prepared(images)
    assert torch.equal(prepared(images.to(memory_format=torch.channels_last)), expected)
    assert torch.equal(prepared(images.transpose(2, 3).contiguous().transpose(2, 3)), expected)
    assert torch.equal(prepared(torch.cat([images, images])[1:4]), prepared(torch.cat([images, images])[1:4].clone()))
    assert prepared(images[:0]).shape == (0, 7)


def test_empty_batch(engine: str) -> None:
    for name in ("resnet20_dgc", "resnet20_sgc"):
        prepared = deploy.prepare(create_model(name).eval())
        assert prepared(torch.randn(0, 3, 32, 32)).shape == (0, 10)


def test_autocast_changes_nothing(digits) -> None:
    _, prepared, images = digits
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(prepared(images), prepared(images))
        assert prepared(images).dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16, "meta"])
@pytest.mark.parametrize("method", ["dgc", "lgc", "fbs"])
def test_defaults_of_torch_change_nothing(engine: str, default: torch.dtype | str, method: str) -> None:
    model, images = small(f"resnet20_{method}")
    to_static_(model)
    expected = deploy.prepare(model)(images)
    try:
        if isinstance(default, str):
            torch.set_default_device(default)
        else:
            torch.set_default_dtype(default)
        prepared = deploy.prepare(model)
        actual = prepared(images)
        prepared.time_by_step(images)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.equal(actual, expected)


@pytest.mark.skipif(not native.available(), reason="no native kernels")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_what_would_leave_native_code_out_is_refused(digits) -> None:
    """A trace has only the torch operations in it, and a fake tensor no memory to read."""
    _, prepared, images = digits
    prepared(images)
    refusal = "cannot trace, simulate or transform; use the original"
    with pytest.raises(UserError, match=refusal):
        torch.jit.trace(prepared, images)
    with FakeTensorMode(), pytest.raises(UserError, match=refusal):
        prepared(torch.empty(images.shape))
    with pytest.raises(UserError, match=refusal):
        torch.func.grad(lambda x: prepared(x).sum())(images)
    with pytest.raises(UserError, match=refusal):
        torch.func.vmap(prepared)(images[None])
    with pytest.raises(UserError, match=refusal):
        torch.func.functionalize(prepared)(images)


def test_a_bad_image_spoils_only_itself(engine: str) -> None:
    model, images = small("resnet20_dgc")
    prepared = deploy.prepare(model)
    expected = prepared(images)
    for value in (float("nan"), float("inf")):
        spoilt = images.clone()
        spoilt[1, 0, 3, 3] = value
        with pytest.raises(UserError, match="NaN or infinite"):
            model(spoilt)
        result = prepared(spoilt)
        assert torch.equal(result[[0, 2]], expected[[0, 2]])
        assert result[1].isnan().any()


def test_eight_python_threads(digits) -> None:
    _, prepared, images = digits
    prepared = copy.deepcopy(prepared)  # nothing is planned for these shapes yet
    batches = [images[:1], images[:2], images, torch.cat([images, images])] * 8
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(prepared, batches))
    for batch, result in zip(batches, results, strict=True):
        assert torch.equal(result, prepared(batch))


def test_copies_and_pickles(digits) -> None:
    _, prepared, images = digits
    expected = prepared(images)
    assert torch.equal(copy.deepcopy(prepared)(images), expected)
    assert torch.equal(pickle.loads(pickle.dumps(prepared))(images), expected)


def test_time_split(engine: str) -> None:
    prepared = deploy.prepare(create_model("resnet20_dgc").eval())
    split = prepared.time_split(torch.rand(1, 3, 32, 32))
    if engine == "native":
        assert set(split) == {"pool", "generator", "select", "convolution", "other"}
        assert split["convolution"] > 0
    else:
        assert set(split) == {"torch"}
    assert all(seconds >= 0 for seconds in split.values())


@pytest.fixture(params=["free", "busy"])
def cores(request) -> Iterator[None]:
    """All of them with other work, too."""
    count = len(os.sched_getaffinity(0)) if request.param == "busy" else 0
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.slow
@pytest.mark.skipif(not native.available(), reason="torch alone is not timed by parts")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_parts_add_up_to_the_call(threads: int, cores) -> None:
    """Whichever thread does the work, and however long it waits for a core."""
    prepared, images = deploy.prepare(create_model("resnet18_dgc").eval()), torch.rand(1, 3, 96, 96)
    shares = []
    with threads_restored():
        torch.set_num_threads(threads)
        for _ in range(7):
            begin = time.perf_counter()
            split = prepared.time_split(images)
            shares.append(sum(split.values()) / (time.perf_counter() - begin))
    assert statistics.median(shares) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", ["condensenet20_dgc", "mobilenetv2_dgc"])
def test_time_by_step_names_the_layers(name: str, engine: str) -> None:
    model = create_model(name, **({"downsample": (3, 5)} if name == "mobilenetv2_dgc" else {})).eval()
    times = deploy.prepare(model).time_by_step(torch.rand(1, 3, 32, 32))
    labels = [layer for step in times for layer in step.label.split(" + ")]
    convolutions = [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | DynamicGroupConv2d)]
    for full_name in convolutions:
        assert full_name in labels, full_name
    decided = [step.label for step in times if step.stages.get("select")]
    dynamic = [name for name, _ in dynamic_layers(model)]
    assert len(decided) == (len(dynamic) if engine == "native" else 0)
    assert all(any(layer in label for layer in dynamic) for label in decided)


@pytest.mark.parametrize("move", [lambda m: m.half(), lambda m: m.cuda(), lambda m: m.to("meta"), lambda m: m.double()])
def test_it_stays_where_it_is(digits, move) -> None:
    _, prepared, images = digits
    with pytest.raises(UserError, match="a prepared model stays on the CPU, in float32"):
        move(prepared)
    assert torch.equal(prepared.cpu().float()(images), prepared(images))


def test_report_tells_what_gates_keep() -> None:
    model = create_model("resnet20_dgc").eval()
    set_progress(model, 0)  # nothing is pruned yet, whatever the target is
    report = deploy.prepare(model).report()
    assert report.kept_share == 1
    assert "gates keep 100.0% of the channels (rate 0.000)" in str(report)
    assert max(map(len, str(report).splitlines())) <= 80
    set_pruning_rate(model, 0.5)
    report = deploy.prepare(model).report()
    assert report.kept_share == 0.5
    assert "3x3 dynamic convolution of 8 of 16 channels a head" in report.rows[1].step
    assert deploy.prepare(create_model("resnet20_dgcg").eval()).report().kept_share is None


def test_report(digits) -> None:
    _, prepared, _ = digits
    report = prepared.report()
    row = next(row for row in report.rows if row.layers == "stages.0.norm1 + conv1 + norm2")
    assert row.step == "1x1 dynamic convolution of 4 of 16 channels a head, norm before, relu"
    assert report.summary in " ".join(str(report).split())
    if native.available():
        assert "at its peak: " in str(report).splitlines()[-1]
    assert report.summary in repr(prepared)
    if native.available():
        assert report.summary == f"{len(report.rows)} of {len(report.rows)} steps are native ({native.isa()})"


# --- what is left to torch ---


def test_ties_that_drop_are_left_and_listed(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    model = create_model("resnet20_dgc", tie_rule="drop")
    images = torch.randn(4, 3, 32, 32)
    settled(model, images)
    prepared = deploy.prepare(model)
    left = [step for step in prepared.graph.steps if isinstance(step, Torch)]
    assert len(left) == len(list(dynamic_layers(model)))
    assert {step.reason for step in left} == {"its gate has tie_rule 'drop'"}
    assert "its gate has tie_rule 'drop'" in str(prepared.report())
    assert any(isinstance(step, Elementwise) for step in prepared.graph.steps)  # batch norms that nothing can take
    assert_same_function(model, prepared, images[:3])


class Branching(nn.Module):
    """Takes a way that depends on the image, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.bright = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.dark = nn.ModuleList([nn.Conv2d(3, 8, 3), nn.Hardtanh()])

    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 0:
            return self.bright(x)
        return self.dark[1](self.dark[0](x))


@pytest.mark.parametrize(
    "wrap", [lambda inner: inner, lambda inner: nn.Sequential(nn.Conv2d(3, 3, 1), inner)], ids=["whole", "part"]
)
def test_what_cannot_be_followed_is_python_with_prepared_parts(engine: str, wrap: Callable) -> None:
    model = wrap(Branching()).eval()
    prepared = deploy.prepare(model)
    (left,) = (step for step in prepared.graph.steps if isinstance(step, Torch))
    assert "cannot be followed" in left.reason
    assert [path.rpartition("ing.")[2].removeprefix("1.") for path, _ in prepared.inner] == ["bright", "dark.0"]
    rows = [row for row in prepared.report().rows if "bright" in row.layers]
    assert [row.step for row in rows] == ["3x3 convolution, relu"]
    for images in (torch.rand(2, 3, 9, 9), -torch.rand(2, 3, 9, 9)):
        for same in (prepared, copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
            torch.testing.assert_close(same(images), model(images))


class Results(NamedTuple):
    fine: Tensor
    coarse: list[Tensor]


class Box:
    """Nothing that torch knows of."""

    def __init__(self, fine: Tensor, coarse: list[Tensor]) -> None:
        self.fine, self.coarse = fine, coarse


@pytest.mark.parametrize("kind", [dict, OrderedDict, Results, Box])
def test_a_model_that_returns_several_values(engine: str, kind: Callable[..., Any]) -> None:
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
            self.second = nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Any:
            fine = self.first(x)
            return kind(fine=fine, coarse=[nn.functional.relu(self.second(fine))])

    model, x = Pyramid().eval(), torch.randn(2, 3, 9, 9)
    prepared = deploy.prepare(model)
    expected, actual = model(x), prepared(x)
    assert type(actual) is type(expected)
    if kind is Box:
        actual, expected = vars(actual), vars(expected)
        assert [path for path, _ in prepared.inner] == ["Pyramid.first", "Pyramid.second"]
        assert "it returns a Box" in str(prepared.report())
    else:
        assert kinds(prepared.graph) == {"Conv": 2, "Torch": 1}
        torch.testing.assert_close(pickle.loads(pickle.dumps(prepared))(x), actual)
    torch.testing.assert_close(actual, expected)


class Counting(nn.Module):
    """Counts its calls in a buffer, which it changes or replaces, or in a number, or images; and uses the count."""

    def __init__(self, how: str, follows: bool) -> None:
        super().__init__()
        self.conv, self.how, self.follows = nn.Conv2d(3, 8, 3), how, follows
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("unused", torch.tensor(torch.nan))
        self.number = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "changed":
            self.count += 1
        elif self.how == "replaced":
            self.count = self.count + 1
        elif self.how == "number":
            self.number += 1
        else:
            self.number += x.size(0)
        if not self.follows and x.sum() > 1e9:
            return x
        return self.conv(x) * (self.count + self.number)


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("how", ["changed", "replaced", "number", "images"])
def test_a_part_that_changes_itself_is_left_to_python(engine: str, how: str, follows: bool) -> None:
    model = nn.Sequential(Counting(how, follows), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)).eval()
    prepared, images = deploy.prepare(model), torch.randn(2, 3, 9, 9)
    assert [path for path, _ in prepared.inner] == ["0.conv"]
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(prepared(images), model(images), rtol=TOLERANCE, atol=TOLERANCE)


def test_hooks_still_run(engine: str) -> None:
    model = create_model("resnet20").eval()
    seen: list[torch.Size] = []
    model.layer2.register_forward_hook(lambda module, arguments, output: seen.append(output.shape))
    prepared, x = deploy.prepare(model), torch.rand(2, 3, 32, 32)
    seen.clear()
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-4)
    assert seen == [(2, 32, 16, 16)] * 2
    assert [row.reason for row in prepared.report().rows if row.layers == "layer2"] == ["has forward hooks"]


@pytest.mark.parametrize("parametrize", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_dynamic_layer_with_a_parametrized_weight(engine: str, parametrize: Callable[[nn.Module], nn.Module]) -> None:
    layer = parametrize(DynamicGroupConv2d(8, 8, 3, padding=1, pruning_rate=0.5))
    model, x = nn.Sequential(nn.Conv2d(3, 8, 1), layer, nn.ReLU()).eval(), torch.randn(2, 3, 9, 9)
    prepared = deploy.prepare(model)
    assert kinds(prepared.graph) == {"Conv": 2}
    torch.testing.assert_close(prepared(x), model(x))


# --- wrong use ---


class TopHalf(Gate):
    """A gate that is not one of ours."""

    def mask(self, saliency: Tensor) -> Tensor:
        return saliency >= saliency.median(-1, keepdim=True).values


class LeastSalient(HeadGate):
    """One that is nearly ours."""

    def mask(self, saliency: Tensor) -> Tensor:
        return super().mask(-saliency)


class OfPeaks(SaliencyGenerator):
    def _pool(self, x: Tensor) -> Tensor:
        return x.amax((2, 3))


class Doubled(DynamicGroupConv2d):
    def _convolve(self, x: Tensor, gates: Tensor, *more: Tensor) -> Tensor:
        return 2 * super()._convolve(x, gates, *more)


def replaced_part(name: str, part: nn.Module) -> DynamicGroupConv2d:
    layer = DynamicGroupConv2d(8, 8, 3, padding=1, pruning_rate=0.5)
    setattr(layer, name, part)
    return layer


def with_hook(name: str) -> DynamicGroupConv2d:
    layer = DynamicGroupConv2d(8, 8, 3, padding=1, pruning_rate=0.5)
    layer.get_submodule(name).register_forward_hook(lambda module, arguments, result: 2 * result)
    return layer


OWN_PARTS = {
    "gate": (replaced_part("gate", TopHalf()), "its gate is a TopHalf with a forward of its own"),
    "kind of gate": (replaced_part("gate", LeastSalient(8, 0.5)), "its gate is a LeastSalient with a forward of its"),
    "generator": (replaced_part("generator", OfPeaks(8, 4)), "its generator is a OfPeaks with a forward of its own"),
    "hook on the gate": (with_hook("gate"), "its gate has forward hooks"),
    "hook on the generator": (with_hook("generator"), "its generator has forward hooks"),
    "subclass": (Doubled(8, 8, 3, padding=1, pruning_rate=0.5), "its code cannot be followed"),
}


@pytest.mark.parametrize(("layer", "reason"), OWN_PARTS.values(), ids=OWN_PARTS)
def test_a_layer_with_parts_of_your_own_is_left_and_listed(engine: str, layer: nn.Module, reason: str) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 1), layer, nn.BatchNorm2d(8), nn.ReLU()).eval(), torch.randn(2, 3, 9, 9)
    prepared = deploy.prepare(model)
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-5)
    assert any(row.reason.startswith(reason) for row in prepared.report().left)


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile, lambda model: torch.compile(nn.DataParallel(model))])
def test_what_wraps_the_model_is_taken_off(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), torch.randn(1, 3, 5, 5)
    prepared = deploy.prepare(wrap(model).eval())
    assert kinds(prepared.graph) == {"Conv": 1}
    torch.testing.assert_close(prepared(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_torchscript_that_is_frozen(engine: str) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), torch.randn(1, 3, 5, 5)
    prepared = deploy.prepare(torch.jit.freeze(torch.jit.trace(model, x)))
    torch.testing.assert_close(prepared(x), model(x))


def test_a_model_that_cannot_be_copied() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1)).eval()
    prune.l1_unstructured(model[0], "weight", 0.5)
    with pytest.raises(UserError, match=r"cannot be copied: .*prune\.remove"):
        deploy.prepare(model)
    prune.remove(model[0], "weight")
    deploy.prepare(model)


def test_wrong_models() -> None:
    model = create_model("resnet20_dgc")
    with pytest.raises(UserError, match=r"in training mode: the model, pool, pool.0 \.\.\.; call model.eval"):
        deploy.prepare(model)
    model.eval().bn1.train()
    with pytest.raises(UserError, match="in training mode: bn1; call"):
        deploy.prepare(model)
    with pytest.raises(UserError, match=r"conv1.weight is torch.float64; call model.float\(\)"):
        deploy.prepare(model.eval().double())
    with pytest.raises(UserError, match=r"conv1.weight is on meta; call model.cpu\(\)"):
        deploy.prepare(model.to("meta"))
    with pytest.raises(UserError, match="got int"):
        deploy.prepare(3)
    with pytest.raises(UserError, match="prepared already"):
        deploy.prepare(deploy.prepare(create_model("resnet20").eval()))
    with pytest.raises(UserError, match="no values yet"):
        deploy.prepare(nn.Sequential(nn.LazyConv2d(3, 3)).eval())
    with pytest.raises(UserError, match="Bilinear needs more"):
        deploy.prepare(nn.Bilinear(3, 3, 3).eval())


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(1, 3, 32, 32).double(), r"are float32, got an input of torch.float64; use .float\(\)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "got an input of torch.uint8"),
        (torch.rand(1, 4, 32, 32), r"expected an input \[batch, 3, height, width\], got \[1, 4, 32, 32\]"),
        (torch.rand(3, 32, 32), r"got \[3, 32, 32\]; add the batch dimension"),
        (torch.rand(1, 3, 32, 32, device="meta"), "CPU only, got an input on meta"),
        ([1, 2], "expected a tensor, got a list"),
    ],
    ids=["double", "uint8", "channels", "no batch", "device", "list"],
)
def test_wrong_inputs(digits, x: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        digits[1](x)


def test_an_image_that_is_too_small(engine: str) -> None:
    prepared = deploy.prepare(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).eval())
    with pytest.raises((UserError, RuntimeError), match=r"too small|Kernel size can't be greater"):
        prepared(torch.rand(1, 3, 4, 4))


def with_bias(layer: nn.Module, length: int) -> nn.Module:
    layer.bias = nn.Parameter(torch.randn(length))
    return layer


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 8, 3, stride=0)],
        [nn.Conv2d(3, 8, 3, dilation=0)],
        [nn.Conv2d(3, 8, 3, dilation=-1)],
        [with_bias(nn.Conv2d(3, 8, 3), 5)],
        [nn.Conv2d(3, 16, 1), nn.Conv2d(32, 32, 3, groups=32)],
        [nn.Conv2d(3, 32, 1), nn.Conv2d(16, 16, 3, groups=16)],
        [nn.BatchNorm2d(2), nn.Conv2d(3, 8, 3)],
        [nn.MaxPool2d(2, stride=1, padding=2)],
        [nn.AvgPool2d(2, stride=1, padding=-1)],
        [nn.MaxPool2d((0, 2), stride=1)],
        [nn.AvgPool2d(2, stride=(0, 1))],
        [nn.AdaptiveAvgPool2d(1), nn.Flatten(), with_bias(nn.Linear(3, 8), 5)],
    ],
    ids=repr,
)
def test_what_torch_refuses_is_refused(layers: list[nn.Module], engine: str) -> None:
    """The kernels look at nothing: what does not fit would be read beyond its end."""
    model, images = nn.Sequential(*layers).eval(), torch.rand(1, 3, 8, 8)
    with pytest.raises(RuntimeError):
        model(images)
    with pytest.raises((RuntimeError, UserError)):
        deploy.prepare(model)(images)


@pytest.mark.parametrize("shape", [(1, 3, 0, 4), (2, 3, 4, 0), (2, 0, 4, 4)])
@pytest.mark.parametrize(
    "layer", [nn.ReLU(), nn.MaxPool2d(2, padding=1), nn.ZeroPad2d(1), nn.AdaptiveAvgPool2d(1)], ids=repr
)
def test_images_in_which_there_is_nothing(layer: nn.Module, shape: tuple[int, ...], engine: str) -> None:
    """Of some, torch makes something."""
    with pytest.raises(UserError, match="nothing in these images"):
        deploy.prepare(nn.Sequential(layer, nn.ReLU()).eval())(torch.empty(shape))


@pytest.mark.skipif(not native.available(), reason="no native kernels")
def test_tensors_that_are_not_what_their_memory_says(digits) -> None:
    _, prepared, images = digits
    expected = prepared(-images)
    assert torch.equal(prepared(torch._neg_view(images)), expected)
    with pytest.raises(UserError, match="no memory that native code could read"):
        prepared(torch._efficientzerotensor(images.shape))
    images = images[:1].clone()
    images.untyped_storage().resize_(0)
    with pytest.raises(UserError, match="no memory that native code could read"):
        prepared(images)


FORKING = """
import os, signal, torch
from torch import nn
from dgconv import deploy

torch.set_num_threads(2)
prepared, x = deploy.prepare(nn.Conv2d(8, 8, 3).eval()), torch.rand(2, 8, 9, 9)
expected = prepared(x)
if not (child := os.fork()):
    signal.alarm(20)
    os._exit(not torch.equal(prepared(x), expected))
assert torch.equal(prepared(x), expected)
raise SystemExit(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not native.available() or not hasattr(os, "fork"), reason="no native kernels, or no fork")
def test_a_process_that_was_forked() -> None:
    """It does not have the threads that worked for the one before, and must not wait for them."""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], timeout=120).returncode == 0
