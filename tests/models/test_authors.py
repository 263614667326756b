"""The authors' checkpoints, written here key by key and evaluated here straight from their tensors."""

import io
import math
import resource
import time
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dgconv.errors import UserError
from dgconv.layers import DynamicGroupConv2d
from dgconv.models import create_model
from dgconv.models.authors import import_authors_checkpoint
from dgconv.models.torch_files import read_all, read_torch_file

State = dict[str, torch.Tensor]


# Checkpoints, as the authors' code lays them out


def add_norm(state: State, name: str, channels: int, counted: bool = True) -> None:
    state[f"{name}.weight"] = 0.5 + torch.rand(channels)
    state[f"{name}.bias"] = 0.3 * torch.randn(channels)
    state[f"{name}.running_mean"] = torch.zeros(channels)  # calibrate() sets both
    state[f"{name}.running_var"] = torch.ones(channels)
    if counted:
        state[f"{name}.num_batches_tracked"] = torch.tensor(7)


def add_layer(state, name, inputs, outputs, size, *, rate, heads=4, first=0, squeeze=16, halve=True) -> None:
    if halve and inputs < 80:
        squeeze = squeeze // 2
    hidden = inputs // squeeze
    state[f"{name}._inactive_channels"] = torch.tensor([float(round(rate * inputs))])
    add_norm(state, f"{name}.norm", inputs)
    for head in range(first, first + heads):
        fan_out = outputs // heads * size**2
        state[f"{name}.headconv_{head}.conv.weight"] = (
            torch.randn(outputs // heads, inputs, size, size) * (2 / fan_out) ** 0.5
        )
        state[f"{name}.headconv_{head}.fc1.weight"] = torch.randn(hidden, inputs) * (2 / inputs) ** 0.5
        state[f"{name}.headconv_{head}.fc2.weight"] = torch.randn(inputs, hidden) * (2 / hidden) ** 0.5
        state[f"{name}.headconv_{head}.fc2.bias"] = 1 + 0.1 * torch.randn(inputs)


def condensenet_state(stages=(2, 2, 2), growth=(8, 8, 16), classes=10, groups=4, bottleneck=4, **layer) -> State:
    layer = {"rate": 0.75} | layer
    channels = 2 * growth[0]
    state = {"features.init_conv.weight": torch.randn(channels, 3, 3, 3) / 3}
    for i, (layers, rate) in enumerate(zip(stages, growth, strict=True), start=1):
        for j in range(1, layers + 1):
            name, middle = f"features.denseblock_{i}.denselayer_{j}", bottleneck * rate
            add_layer(state, f"{name}.conv_1", channels, middle, 1, **layer)
            add_norm(state, f"{name}.conv_2.norm", middle)
            state[f"{name}.conv_2.conv.weight"] = torch.randn(rate, middle // groups, 3, 3) / 6
            channels += rate
    add_norm(state, "bn_last", channels)
    state |= {"classifier.weight": torch.randn(classes, channels), "classifier.bias": torch.randn(classes)}
    return state


def resnet_state(width=64, stages=(2, 2, 2, 2), classes=1000, **layer) -> State:
    layer = {"rate": 0.55} | layer
    state = {"conv1.weight": torch.randn(width, 3, 7, 7) / 12}
    add_norm(state, "bn1", width)
    inputs = width
    for i, blocks in enumerate(stages):
        outputs = width * 2**i
        for j in range(blocks):
            name = f"layer{i + 1}.{j}"
            add_layer(state, f"{name}.conv1", inputs, outputs, 3, **layer)
            add_norm(state, f"{name}.bn1", outputs)
            add_layer(state, f"{name}.conv2", outputs, outputs, 3, **layer)
            add_norm(state, f"{name}.bn2", outputs)
            if i > 0 and j == 0:
                add_layer(state, f"{name}.downsample.0", inputs, outputs, 1, **layer)
                add_norm(state, f"{name}.downsample.1.norm", outputs)
            inputs = outputs
    state |= {"fc.weight": torch.randn(classes, inputs) / 8, "fc.bias": torch.randn(classes)}
    return state


# The networks, as the authors' code evaluates them


class Evaluation:
    """Functions of a raw state_dict. With ``calibrate``, each batch norm takes the statistics it sees."""

    def __init__(self, state: State, calibrate: bool = False) -> None:
        self.state, self.calibrate = state, calibrate
        self.masks: list[torch.Tensor] = []  # [B, C] of each head
        self.kept: dict[str, torch.Tensor] = {}  # by layer, how many channels stay, [B, heads]
        self.keep: list[int] = []  # by layer, how many should

    def norm(self, x, name):
        state = self.state
        if self.calibrate:
            state[f"{name}.running_mean"] = x.mean((0, 2, 3))
            state[f"{name}.running_var"] = x.var((0, 2, 3)) + 1e-3
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return F.batch_norm(x, mean, var, state[f"{name}.weight"], state[f"{name}.bias"], training=False)

    def layer(self, x, name, stride=1):
        x = F.relu(self.norm(x, f"{name}.norm"))
        pooled = x.mean((2, 3))
        inactive = int(self.state[f"{name}._inactive_channels"])
        outputs, kept = [], []
        numbers = [n for n in range(20) if f"{name}.headconv_{n}.conv.weight" in self.state]
        for number in numbers:
            head = f"{name}.headconv_{number}"
            hidden = F.relu(F.linear(pooled, self.state[f"{head}.fc1.weight"]))
            g = F.relu(F.linear(hidden, self.state[f"{head}.fc2.weight"], self.state[f"{head}.fc2.bias"]))
            mask = torch.ones_like(g)
            if inactive > 0:
                mask = (g > g.kthvalue(inactive, dim=1, keepdim=True).values).to(g)
            self.masks.append(mask)
            kept.append(mask.sum(1))
            weight = self.state[f"{head}.conv.weight"]
            copy = x * g[:, :, None, None] * mask[:, :, None, None]
            outputs.append(F.conv2d(copy, weight, stride=stride, padding=weight.shape[-1] // 2))
        self.kept[name] = torch.stack(kept, 1)
        self.keep.append(x.shape[1] - inactive)
        out = torch.cat(outputs, 1)
        batch, channels, height, width = out.shape
        grouped = out.view(batch, len(numbers), channels // len(numbers), height, width)
        return grouped.transpose(1, 2).reshape(batch, channels, height, width)

    def condensenet(self, x, stride=1):
        state = self.state
        x = F.conv2d(x, state["features.init_conv.weight"], stride=stride, padding=1)
        block = 1
        while f"features.denseblock_{block}.denselayer_1.conv_2.conv.weight" in state:
            x = F.avg_pool2d(x, 2) if block > 1 else x
            layer = 1
            while (conv := f"features.denseblock_{block}.denselayer_{layer}.conv_2.conv.weight") in state:
                name = f"features.denseblock_{block}.denselayer_{layer}"
                out = self.layer(x, f"{name}.conv_1")
                out = F.relu(self.norm(out, f"{name}.conv_2.norm"))
                x = torch.cat([x, F.conv2d(out, state[conv], padding=1, groups=4)], 1)
                layer += 1
            block += 1
        x = F.relu(self.norm(x, "bn_last")).mean((2, 3))
        return F.linear(x, state["classifier.weight"], state["classifier.bias"])

    def resnet(self, x):
        state = self.state
        x = F.conv2d(x, state["conv1.weight"], stride=2, padding=3)
        x = F.max_pool2d(F.relu(self.norm(x, "bn1")), 3, 2, 1)
        for stage in range(1, 5):
            for block in range(2):
                name = f"layer{stage}.{block}"
                stride = 2 if stage > 1 and block == 0 else 1
                shortcut = x
                if f"{name}.downsample.1.norm.weight" in state:
                    shortcut = self.layer(x, f"{name}.downsample.0", stride)
                    shortcut = self.norm(shortcut, f"{name}.downsample.1.norm")
                out = F.relu(self.norm(self.layer(x, f"{name}.conv1", stride), f"{name}.bn1"))
                out = self.norm(self.layer(out, f"{name}.conv2"), f"{name}.bn2")
                x = F.relu(out + shortcut)
        return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def some_images(size: int) -> torch.Tensor:
    """Each with colours of its own, so that the pooled values, and the choices, differ."""
    return torch.randn(3, 3, size, size) + 2 * torch.randn(3, 3, 1, 1)


def as_double(state: State) -> State:
    return {key: value.double() for key, value in state.items()}


def save(path, state: State, prefix: str = "module."):
    content = {"epoch": 3, "best_prec1": 94.2, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}
    torch.save(content | {"state_dict": {prefix + key: value for key, value in state.items()}}, path)
    return path


@torch.no_grad()
def assert_agrees(state: State, model, images, network: Callable, choices: bool = True) -> Evaluation:
    """Same logits, in double precision: in single, rounding would here and there decide what stays."""
    evaluation = Evaluation(as_double(state))
    expected = network(evaluation, images.double())
    scale = expected.abs().max()
    assert 1e-2 < scale < 1e3
    if choices:
        assert any((mask != mask[:1]).any() for mask in evaluation.masks), "all images keep the same channels"
        assert (expected[0] - expected[1]).abs().max() > 1e-2 * scale
    logits = model.double()(images.double())
    model.float()
    assert (logits - expected).abs().max() < 1e-9 * scale
    keep = [int(module.gate.keep) for module in model.modules() if isinstance(module, DynamicGroupConv2d)]
    assert sorted(keep) == sorted(evaluation.keep)
    return evaluation


@torch.no_grad()
def calibrated(state: State, images, network: Callable) -> State:
    """Values of about 1 for these images, where random statistics would overflow from layer to layer."""
    network(Evaluation(state, calibrate=True), images)
    return state


cifar: Callable = Evaluation.condensenet
resnet: Callable = Evaluation.resnet


def imagenet(evaluation, images):
    return evaluation.condensenet(images, stride=2)


@pytest.fixture
def small(tmp_path):
    """A small CondenseNet's tensors, images for it, and where to save it."""
    images = some_images(16)
    return calibrated(condensenet_state(), images, cifar), images, tmp_path / "model_best.pth.tar"


# Agreement


@pytest.mark.parametrize("prefix", ["module.", ""])
@pytest.mark.parametrize("first", [0, 1])
def test_condensenet_for_cifar_gives_the_authors_logits(tmp_path, prefix, first):
    images = some_images(16)
    state = calibrated(condensenet_state(first=first), images, cifar)
    model = import_authors_checkpoint(save(tmp_path / "x.tar", state, prefix))
    assert_agrees(state, model, images, cifar)
    assert not model.training
    assert model.config == {
        "name": "condensenet86_dgc",
        "num_classes": 10,
        "stages": (2, 2, 2),
        "growth": (8, 8, 16),
        "heads": 4,
        "squeeze": 16,
        "halve_squeeze": True,
        "pruning_rate": 0.75,
        "keep_rule": "round",
        "tie_rule": "drop",
    }


def test_heads_count_as_numbers(tmp_path):
    images = some_images(16)
    state = calibrated(condensenet_state(heads=16), images, cifar)  # headconv_10 comes after headconv_9
    model = import_authors_checkpoint(save(tmp_path / "x.tar", dict(sorted(state.items()))))
    assert model.config["heads"] == 16
    assert_agrees(state, model, images, cifar)


def test_condensenet_for_imagenet_gives_the_authors_logits(tmp_path):
    images = some_images(64)
    state = calibrated(condensenet_state((1, 2, 1, 2), (8, 8, 16, 32), classes=100), images, imagenet)
    model = import_authors_checkpoint(save(tmp_path / "x.tar", state))
    assert model.config["name"] == "condensenet74_dgc"
    assert_agrees(state, model, images, imagenet)


def test_stem_can_be_named(tmp_path):
    images = some_images(32)
    state = calibrated(condensenet_state((1, 1, 1, 1), (8, 8, 8, 8)), images, cifar)
    path = save(tmp_path / "x.tar", state)
    assert_agrees(state, import_authors_checkpoint(path, stem="cifar"), images, cifar)
    with pytest.raises(UserError, match="'cifar', 'imagenet'"):
        import_authors_checkpoint(path, stem="mnist")


def test_resnet18_gives_the_authors_logits(tmp_path):
    images = some_images(64)
    state = calibrated(resnet_state(), images, resnet)
    model = import_authors_checkpoint(save(tmp_path / "x.tar", state))
    assert_agrees(state, model, images, resnet)
    assert model.config["name"] == "resnet18_dgc"
    assert model.config["pre_norm"] is True
    assert model.config["pruning_rate"] == 0.55
    assert model.get_submodule("layer4.1.conv2.2").gate.keep == 512 - 282  # the authors round 281.6


def test_narrow_resnet(tmp_path):
    images = some_images(64)
    state = calibrated(resnet_state(width=16, classes=7, heads=2, rate=1 / 3), images, resnet)
    model = import_authors_checkpoint(save(tmp_path / "x.tar", state))
    assert (model.config["width"], model.config["heads"], model.num_classes) == (16, 2, 7)
    assert model.config["pruning_rate"] == 1 / 3
    assert_agrees(state, model, images, resnet)


@pytest.mark.parametrize(("squeeze", "halve"), [(8, True), (8, False), (4, False)])
def test_squeeze_is_found(tmp_path, squeeze, halve):
    images = some_images(16)
    state = condensenet_state((3, 3), (16, 32), squeeze=squeeze, halve=halve)
    model = import_authors_checkpoint(save(tmp_path / "x.tar", calibrated(state, images, cifar)))
    assert_agrees(state, model, images, cifar)
    assert (model.config["squeeze"], model.config["halve_squeeze"]) == (squeeze, halve)


def test_ties_fall_as_in_the_authors_code(small):
    """All saliencies of a head equal: every one is at the border, so the head gives zero."""
    state, images, path = small
    for key, value in state.items():
        if "denseblock_2" in key and "headconv_1" in key and "fc2" in key:
            value.fill_(0 if key.endswith("weight") else 0.7)
        if "denseblock_3" in key and key.endswith("fc2.bias"):
            value.sub_(2.5)  # so many zeros after the last ReLU that some tie across the border
    calibrated(state, images, cifar)
    model = import_authors_checkpoint(save(path, state))
    evaluation = assert_agrees(state, model, images, cifar, choices=False)
    kept = evaluation.kept["features.denseblock_2.denselayer_1.conv_1"]  # [B, heads]
    assert (kept[:, 1] == 0).all()
    assert (kept[:, 0] == 8).all()
    assert (model.get_submodule("stages.3.conv1")(torch.rand(2, 32, 4, 4))[:, 1::4] == 0).all()
    across = evaluation.kept["features.denseblock_3.denselayer_2.conv_1"]
    assert ((across > 0) & (across < 16)).any()


# The pruning rate


@pytest.mark.parametrize("rate", [0, 1 / 3, 0.5, 0.75, 5 / 6, 0.4177])
def test_one_rate_for_all_layers(tmp_path, rate):
    images = some_images(16)
    state = calibrated(condensenet_state(rate=rate), images, cifar)
    model = import_authors_checkpoint(save(tmp_path / "x.tar", state))
    assert_agrees(state, model, images, cifar, choices=rate > 0)
    assert model.config["pruning_rate"] == pytest.approx(rate, abs=1e-2 if rate == 0.4177 else 1e-9)
    fresh = create_model(**model.config)
    keeps, fresh_keeps = (
        {name: int(tensor) for name, tensor in network.state_dict().items() if name.endswith("gate.keep")}
        for network in (model, fresh)
    )
    assert keeps == fresh_keeps


def test_counts_that_no_single_rate_gives(small):
    state, images, path = small
    shares = []
    for n, key in enumerate([key for key in state if key.endswith("_inactive_channels")]):
        state[key] = torch.tensor([3 * n])  # an integer tensor for once
        shares.append(3 * n / len(state[key.replace("_inactive_channels", "norm.weight")]))
    model = import_authors_checkpoint(save(path, calibrated(state, images, cifar)))
    assert_agrees(state, model, images, cifar)
    assert model.config["pruning_rate"] == pytest.approx(math.fsum(shares) / len(shares))

    again = create_model(**model.config).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images), model(images))


# Files that are whole, but different


def test_old_file_without_batch_counters(small):
    state, images, path = small
    state = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    assert_agrees(state, import_authors_checkpoint(save(path, state)), images, cifar)


def test_old_file_format(small):
    state, images, path = small
    torch.save({"state_dict": state}, path, _use_new_zipfile_serialization=False)
    assert_agrees(state, import_authors_checkpoint(str(path)), images, cifar)


# Errors


class Surprise:
    """Unpickling it unsafely would run this."""

    def __reduce__(self):
        return pytest.fail, ("code from the file was run",)


def bad_files(state) -> dict[str, tuple[bytes, str]]:
    def written(content, **options) -> bytes:
        torch.save(content, buffer := io.BytesIO(), **options)
        return buffer.getvalue()

    whole, legacy = (written({"state_dict": state}, _use_new_zipfile_serialization=new) for new in (True, False))
    with zipfile.ZipFile(archive := io.BytesIO(), "w") as zipped:
        zipped.writestr("photo.jpg", b"...")
    return {
        "empty": (b"", "truncated"),
        "text": (b"<html>404 Not Found</html>\n" * 20, "not written by torch.save"),
        "image": (b"\xff\xd8\xff\xe0" + bytes(999), "not written by torch.save"),
        "zip": (archive.getvalue(), "not written by torch.save"),
        "half": (whole[: len(whole) // 2], "truncated"),
        "legacy_half": (legacy[: len(legacy) // 2], "truncated"),
        "legacy_start": (legacy[:30], "truncated"),
        "object": (written({"state_dict": state, "args": Surprise()}), "holds a Python object"),
        "numpy": (written({"state_dict": state, "best_prec1": np.float64(9)}), "numpy"),
        "bare": (
            written(state),
            "expected a dict with the entry 'state_dict', got one with features.init_conv.weight",
        ),
        "list": (written([1, 2]), "expected a dict with the entry 'state_dict', got list"),
        "numbers": (written({"state_dict": {"a": 1}}), "nothing but tensors of plain numbers, got a"),
        "sparse": (written({"state_dict": {"a": torch.eye(2).to_sparse()}}), "plain numbers, got a"),
        "complex": (written({"state_dict": {"a": torch.eye(2).to(torch.complex64)}}), "plain numbers, got a"),
        "shapes": (written({"state_dict": {"a": torch.eye(2, device="meta")}}), "plain numbers, got a"),
        "nothing": (written({"state_dict": {}}), "got nothing"),
    }


def tiny_but_greedy(state) -> dict[str, tuple[bytes, str]]:
    """Files of some kilobytes that would take gigabytes, or forever."""

    def written(state) -> bytes:
        torch.save({"state_dict": state}, buffer := io.BytesIO())
        return buffer.getvalue()

    def with_pickle(pickled: bytes, compression=zipfile.ZIP_STORED) -> bytes:
        with zipfile.ZipFile(archive := io.BytesIO(), "w", compression) as zipped:
            zipped.writestr("archive/data.pkl", pickled)
        return archive.getvalue()

    one = torch.ones(1000)
    deep = b"(" + b")" + b"\x85" * 200_000 + b"K\x01u."
    doubled = b"(K\x01" + b"2\x86".replace(b"2", b"q\x00h\x00") * 200 + b"K\x01u."
    return {
        "expanded": (written(state | {"classifier.weight": torch.ones(1, 1).expand(10**5, 10**5)}), "larger than the"),
        "shared": (written({f"layer{i}": one for i in range(1000)}), "larger than the file"),
        "digits": (written(state | {f"features.denseblock_{'1' * 5000}.x": one}), "names of up to 200"),
        "classes": (written(state | {"classifier.weight": torch.ones(10**5, 1)}), "larger than its weights"),
        "compressed": (with_pickle(b"\x80\x02}." + bytes(10**7), zipfile.ZIP_DEFLATED), "compressed, or larger"),
        "deep key": (with_pickle(b"\x80\x02}" + deep), "neither words nor numbers"),
        "key of 2 ** 200": (with_pickle(b"\x80\x02}" + doubled), "neither words nor numbers"),
        "stages": (written({f"layer{i}.0.conv1.headconv_1.x": torch.ones(1) for i in range(101)}), "at most 100 stage"),
        "beyond": (written(state).replace(b"K\x03K\x03t", b"K\x09K\x03t"), "damaged"),
    }


@pytest.mark.parametrize("kind", tiny_but_greedy({}))
def test_a_small_file_that_asks_for_much(small, kind):
    state, _, path = small
    content, message = tiny_but_greedy(state)[kind]
    path.write_bytes(content)
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=message):
        import_authors_checkpoint(path)
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19, "half a gigabyte"


@pytest.mark.parametrize("is_new", [True, False])
def test_tensors_of_any_kind_as_torch_reads_them(tmp_path, is_new):
    base = torch.arange(24.0).view(2, 3, 4)
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8]
    state = {str(kind): torch.arange(5).to(kind) for kind in (*kinds, torch.uint8, torch.bool)}
    state |= {"part": base[1], "turned": base.permute(2, 0, 1), "none": base[:0], "parameter": nn.Parameter(base)}
    torch.save({"epoch": 3, "state_dict": state}, path := tmp_path / "x", _use_new_zipfile_serialization=is_new)
    read = read_torch_file(path, lambda file: read_all(file, file.content["state_dict"]))
    expected = torch.load(path, weights_only=True)["state_dict"]
    assert read.keys() == expected.keys()
    for name, tensor in read.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize("kind", bad_files({"features.init_conv.weight": torch.zeros(9, 9)}))
def test_unusable_file(small, kind):
    state, _, path = small
    content, message = bad_files(state)[kind]
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        import_authors_checkpoint(path)
    assert str(path) in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_no_file(tmp_path):
    for path, problem in ((tmp_path / "none.tar", "no such file"), (tmp_path, "is no file")):
        with pytest.raises(UserError, match=problem):
            import_authors_checkpoint(path)


def test_foreign_networks(tmp_path, torchvision_models):
    networks = [
        torchvision_models.resnet18(),
        create_model("condensenet20_dgc"),
        create_model("resnet18_dgc"),
    ]
    for network in networks:
        with pytest.raises(UserError, match=r"x\.tar: not a network of the authors' code: expected .*headconv_1"):
            import_authors_checkpoint(save(tmp_path / "x.tar", network.state_dict()))


@pytest.mark.slow
@pytest.mark.parametrize("network", ["condensenet", "resnet"])
def test_any_tensor_missing_misshapen_or_too_many(tmp_path, network):
    path = tmp_path / "x.tar"
    state = condensenet_state((2, 1), (8, 16)) if network == "condensenet" else resnet_state(16, (1, 1), heads=2)
    for key in state:
        if key.endswith("num_batches_tracked"):
            continue
        without = {k: v for k, v in state.items() if k != key}
        with pytest.raises(UserError, match="missing") as caught:
            import_authors_checkpoint(save(path, without))
        assert str(path) in str(caught.value)
        assert key in str(caught.value)
        longer = state | {key: torch.cat([state[key], state[key][:1]])}
        with pytest.raises(UserError) as caught:
            import_authors_checkpoint(save(path, longer))
        assert str(path) in str(caught.value)
        assert "expected" in str(caught.value) or "must" in str(caught.value)
    with pytest.raises(UserError, match=r"unknown: ema\.weight"):
        import_authors_checkpoint(save(path, state | {"ema.weight": torch.zeros(3)}))


def test_errors_say_what_was_expected(small):
    state, _, path = small
    layer = "features.denseblock_1.denselayer_2.conv_1"
    cases = {
        "wrong shape: bn_last.weight": {"bn_last.weight": torch.ones(5)},
        r"bn_last.weight \[5\] \(expected \[80\]\)": {"bn_last.weight": torch.ones(5)},
        "must have 2 dimensions": {"classifier.weight": torch.ones(5)},
        "none of them empty": {"classifier.weight": torch.ones(0, 80)},
        "from 0 to 23, got .24": {f"{layer}._inactive_channels": torch.tensor([24.0])},
        "whole number from 0 to 23, got .1.5": {f"{layer}._inactive_channels": torch.tensor([1.5])},
        "from 0 to 23, got .nan": {f"{layer}._inactive_channels": torch.tensor([math.nan])},
        "one squeeze d, got .* has 2 for 16": {f"{layer}.headconv_0.fc1.weight": torch.ones(9, 24)},
        "heads must divide": {f"{layer}.headconv_9.fc2.bias": torch.ones(24)},
    }
    for message, change in cases.items():
        with pytest.raises(UserError, match=message) as caught:
            import_authors_checkpoint(save(path, state | change))
        assert str(path) in str(caught.value)


def test_layer_missing_in_the_middle(small):
    state, _, path = small
    state = {key: value for key, value in state.items() if "denseblock_2.denselayer_1" not in key}
    with pytest.raises(UserError, match=r"'features\.denseblock_2\.denselayer_1\.conv_2\.conv\.weight' is missing"):
        import_authors_checkpoint(save(path, state))


def test_other_bottleneck_and_groups_are_refused(tmp_path):
    cases = {
        r"headconv_0\.conv\.weight \[16, 16, 1, 1\] \(expected \[8,": condensenet_state(bottleneck=8),
        r"conv_2\.conv\.weight \[8, 16, 3, 3\] \(expected \[8, 8,": condensenet_state(groups=2),
    }
    for message, state in cases.items():
        with pytest.raises(UserError, match=rf"x\.tar.*wrong shape: .*{message}"):
            import_authors_checkpoint(save(tmp_path / "x.tar", state))
