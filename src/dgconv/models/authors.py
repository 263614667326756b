"""Checkpoints of the authors' public code, read into the models here with the same choices and logits.

The tables have our name on the left, theirs on the right. Their DGC layer also holds ``_inactive_channels``,
how many channels it prunes, and a BN, which stands in front of the layer here.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from torch import Tensor

from ..errors import UserError
from ..layers import DynamicGroupConv2d, HeadGate, keep_count
from ..layers.saliency import hidden_width
from ._classifier import ImageClassifier
from ._registry import build_model
from ._room import NoLargerThan, Room
from .torch_files import ForeignObject, StoredTensor, TorchFile, read_all, read_torch_file

DGC_HEAD = {  # in any DGC layer, {h} from 0 or from 1
    "weight": "headconv_{h}.conv.weight",  # [C'/H, C, k, k]
    "generator.weight1": "headconv_{h}.fc1.weight",  # [C/d, C]
    "generator.weight2": "headconv_{h}.fc2.weight",  # [C, C/d]
    "generator.bias": "headconv_{h}.fc2.bias",  # [C]
}
CONDENSENET = {"stem": "features.init_conv", "norm": "bn_last", "classifier": "classifier"}
DENSE_LAYER = {  # in features.denseblock_{stage}.denselayer_{layer}, both from 1
    "norm1": "conv_1.norm",
    "conv1": "conv_1",  # DGC
    "norm2": "conv_2.norm",
    "conv2": "conv_2.conv",
}
RESNET = {"conv1": "conv1", "bn1": "bn1", "fc": "fc"}
RESNET_BLOCK = {  # in layer{stage}.{block}, from 1 and from 0
    "conv1.0": "conv1.norm",
    "conv1.2": "conv1",  # DGC
    "bn1": "bn1",
    "conv2.0": "conv2.norm",
    "conv2.2": "conv2",  # DGC
    "bn2": "bn2",
}
RESNET_SHORTCUT = {  # in block 0 of each stage but the first
    "downsample.0.0": "downsample.0.norm",
    "downsample.0.2": "downsample.0",  # DGC
    "downsample.1": "downsample.1.norm",
}
MOST_TENSORS = 20_000
LONGEST_NAME = 200  # characters
MOST_STAGES = 100
MOST_SQUEEZE = 4096
RATES = (0.0, 1 / 3, 0.5, 0.55, 0.65, 0.75, 5 / 6, 7 / 8)  # tried first: those the paper reports


def import_authors_checkpoint(path: str | Path, *, stem: Literal["cifar", "imagenet"] | None = None) -> ImageClassifier:
    """The model in a ``.tar`` file of the authors' code, in eval mode.

    Names and shapes tell the architecture: DydenseNet becomes ``condensenet86_dgc`` or ``condensenet74_dgc``,
    dyresnet18 becomes ``resnet18_dgc`` with ``pre_norm``, both with the authors' keep and tie rules. Every
    layer keeps as many channels as in the file. Where no single rate gives these numbers, as may happen
    during their ramp, ``config["pruning_rate"]`` is the mean; the ``keep`` buffers are exact all the same.

    Only tensors and plain values are read, and nothing in the file is run (:mod:`dgconv.models.torch_files`).

    Args:
        stem: of a CondenseNet, because no shape shows its stride. By default ``"cifar"`` (stride 1) up to
            three stages, ``"imagenet"`` (stride 2) above.
    """
    checkpoint = _read(Path(path))
    if checkpoint.heads and checkpoint.find(r"features\.denseblock_(\d+)\."):
        name, options, modules = _condensenet(checkpoint, stem)
    elif checkpoint.heads and checkpoint.find(r"layer(\d+)\."):
        name, options, modules = _resnet(checkpoint)
    else:
        raise checkpoint.error(
            "not a network of the authors' code: expected tensors such as 'features.denseblock_1."
            "denselayer_1.conv_1.headconv_1.conv.weight' (DydenseNet) or "
            f"'layer1.0.conv1.headconv_1.conv.weight' (dyresnet18), got {_some(checkpoint.tensors)}"
        )
    options |= _layer_options(checkpoint)
    try:
        with NoLargerThan(Room.of({key: tensor.shape for key, tensor in checkpoint.tensors.items()})):
            model = build_model(name, **options)
    except ValueError as error:
        raise checkpoint.error(str(error)) from None
    _fill(model, modules, checkpoint)
    return model.eval()


@dataclass
class _Checkpoint:
    path: Path
    tensors: dict[str, Tensor]

    def error(self, text: str) -> UserError:
        return UserError(f"{self.path}: {text}")

    def stages(self, pattern: str) -> list[int]:
        """Their numbers in the names of tensors."""
        if len(found := self.find(pattern)) > MOST_STAGES:
            raise self.error(f"expected at most {MOST_STAGES} stages, got {len(found)}")
        return found

    def find(self, pattern: str) -> list[int]:
        """The numbers that the pattern's group takes at the beginning of the keys."""
        return sorted({int(found[1]) for key in self.tensors if (found := re.match(pattern, key, re.ASCII))})

    @property
    def heads(self) -> list[int]:
        return self.find(r".+\.headconv_(\d+)\.")

    def shape(self, key: str, dims: int) -> tuple[int, ...]:
        if key not in self.tensors:
            raise self.error(f"the tensor {key!r} is missing")
        shape = tuple(self.tensors[key].shape)
        if len(shape) != dims or 0 in shape:
            raise self.error(f"{key!r} must have {dims} dimensions, none of them empty, got {list(shape)}")
        return shape


def _read(path: Path) -> _Checkpoint:
    if not path.is_file():
        problem = "is no file" if path.exists() else "no such file"
        raise UserError(f"{path}: {problem}; expected a checkpoint of the authors' code")
    try:
        return _Checkpoint(path, read_torch_file(path, _state_of))
    except ForeignObject as error:
        raise UserError(
            f"{path}: holds a Python object, {error.name}, that only unsafe unpickling could load; "
            "expected tensors and plain values. If you trust the file, load it elsewhere and save only "
            "{'state_dict': ...}"
        ) from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path}: truncated, damaged, or not written by torch.save ({str(error)[:100]}); "
            "expected a checkpoint of the authors' code"
        ) from None


def _state_of(file: TorchFile) -> dict[str, Tensor]:
    content = file.content
    state = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(state, dict):
        got = f"one with {_some(map(str, content))}" if isinstance(content, dict) else type(content).__name__
        raise UserError(f"expected a dict with the entry 'state_dict', got {got}")
    names = {str(key).removeprefix("module."): value for key, value in state.items()}
    if strange := [name for name, value in names.items() if not isinstance(value, StoredTensor)]:
        raise UserError(f"'state_dict' must hold nothing but tensors of plain numbers, got {_some(strange)}")
    if len(names) > MOST_TENSORS or any(len(name) > LONGEST_NAME for name in names):
        raise UserError(f"'state_dict' must hold at most {MOST_TENSORS} tensors with names of up to {LONGEST_NAME}")
    return read_all(file, names)


def _condensenet(checkpoint: _Checkpoint, stem: str | None) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Name, options of the backbone, and our modules with the authors' names."""
    if stem not in (None, "cifar", "imagenet"):
        raise UserError(f"stem must be 'cifar', 'imagenet' or None, got {stem!r}")
    modules = dict(CONDENSENET)
    stages: list[int] = []
    growth: list[int] = []
    for block in checkpoint.stages(r"features\.denseblock_(\d+)\."):
        theirs = f"features.denseblock_{block}.denselayer_"
        growth.append(checkpoint.shape(f"{theirs}1.conv_2.conv.weight", 4)[0])
        layers = len(checkpoint.find(re.escape(theirs) + r"(\d+)\."))
        for layer in range(layers):
            ours = sum(stages) + len(stages) + layer  # our stages have a pooling in between
            modules |= {f"stages.{ours}.{k}": f"{theirs}{layer + 1}.{v}" for k, v in DENSE_LAYER.items()}
        stages.append(layers)
    is_cifar = stem == "cifar" if stem else len(stages) <= 3
    options = {
        "num_classes": checkpoint.shape("classifier.weight", 2)[0],
        "stages": tuple(stages),
        "growth": tuple(growth),
    }
    return "condensenet86_dgc" if is_cifar else "condensenet74_dgc", options, modules


def _resnet(checkpoint: _Checkpoint) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Name, options of the backbone, and our modules with the authors' names."""
    modules = dict(RESNET)
    stages = [len(checkpoint.find(rf"layer{stage}\.(\d+)\.")) for stage in checkpoint.stages(r"layer(\d+)\.")]
    for stage, blocks in enumerate(stages, start=1):
        for block in range(blocks):
            table = RESNET_BLOCK | RESNET_SHORTCUT if stage > 1 and block == 0 else RESNET_BLOCK
            modules |= {f"layer{stage}.{block}.{k}": f"layer{stage}.{block}.{v}" for k, v in table.items()}
    options = {
        "num_classes": checkpoint.shape("fc.weight", 2)[0],
        "stages": tuple(stages),
        "width": checkpoint.shape("conv1.weight", 4)[0],
        "pre_norm": True,
    }
    return "resnet18_dgc", options, modules


def _layer_options(checkpoint: _Checkpoint) -> dict[str, Any]:
    """Options that give the hidden widths and the numbers of pruned channels in the file."""
    hidden: dict[str, tuple[int, int]] = {}  # of each layer: C and C/d
    pruned: list[tuple[int, int]] = []  # C and how many of them
    heads = checkpoint.heads
    found = [re.match(r"(.+)\.headconv_", key) for key in checkpoint.tensors]
    for layer in dict.fromkeys(match[1] for match in found if match):
        width, channels = checkpoint.shape(f"{layer}.headconv_{heads[0]}.fc1.weight", 2)
        checkpoint.shape(f"{layer}._inactive_channels", 1)
        count = checkpoint.tensors[f"{layer}._inactive_channels"].tolist()
        if len(count) != 1 or not 0 <= count[0] < channels or count[0] % 1:
            raise checkpoint.error(
                f"'{layer}._inactive_channels' must be a whole number from 0 to {channels - 1}, got {count}"
            )
        hidden[layer] = channels, width
        pruned.append((channels, int(count[0])))
    widest = max(channels for channels, _ in pruned)
    for squeeze in (16, *range(1, 1 + min(widest, MOST_SQUEEZE))):
        for halve in (True, False):
            if all(hidden_width(channels, squeeze, halve) == width for channels, width in hidden.values()):
                return {
                    "heads": len(heads),
                    "pruning_rate": _pruning_rate(pruned),
                    "squeeze": squeeze,
                    "halve_squeeze": halve,
                    "keep_rule": "round",
                    "tie_rule": "drop",
                }
    widths = [f"{layer} has {width} for {channels} channels" for layer, (channels, width) in hidden.items()]
    raise checkpoint.error(f"expected hidden widths (fc1) of C/d with one squeeze d, got {_some(widths)}")


def _pruning_rate(pruned: list[tuple[int, int]]) -> float:
    """The rate at which each layer prunes n of its c channels, or the mean if no rate does."""
    low, high = max((n - 0.5) / c for c, n in pruned), min((n + 0.5) / c for c, n in pruned)
    for rate in (*RATES, (low + high) / 2):
        if 0 <= rate < 1 and all(keep_count(c, rate, "round") == c - n for c, n in pruned):
            return rate
    return fmean(n / c for c, n in pruned)


def _fill(model: ImageClassifier, modules: dict[str, str], checkpoint: _Checkpoint) -> None:
    """Copy every tensor of the checkpoint to its place; none may be left over on either side."""
    heads = checkpoint.heads
    places: dict[str, Tensor] = {}  # their key -> the memory of our model it belongs in
    for ours, theirs in modules.items():
        module = model.get_submodule(ours)
        for name, tensor in module.state_dict().items():
            if not isinstance(module, DynamicGroupConv2d):
                places[f"{theirs}.{name}"] = tensor
            elif name == "gate.keep":
                places[f"{theirs}._inactive_channels"] = tensor.view(1)
            else:
                for i, head in enumerate(heads):
                    part = tensor[i :: len(heads)] if name == "weight" else tensor[i]
                    places[f"{theirs}.{DGC_HEAD[name].format(h=head)}"] = part
    given = checkpoint.tensors
    optional = {key for key in places if key.endswith(".num_batches_tracked")}  # old files have none
    problems = {
        "missing": [key for key in places if key not in given and key not in optional],
        "unknown": [key for key in given if key not in places],
        "wrong shape": [
            f"{key} {list(given[key].shape)} (expected {list(place.shape)})"
            for key, place in places.items()
            if key in given and given[key].shape != place.shape
        ],
    }
    if any(problems.values()):
        text = "; ".join(f"{what}: {_some(keys)}" for what, keys in problems.items() if keys)
        raise checkpoint.error(f"does not fit {model.config['name']} with stages {model.config['stages']}: {text}")
    for key, value in given.items():
        places[key].copy_(value)
    for module in model.modules():
        if isinstance(module, HeadGate):
            module.keep.copy_(module.channels - module.keep)  # so far how many are not kept


def _some(words: Iterable[str]) -> str:
    words = [word if len(word) <= LONGEST_NAME else f"{word[:LONGEST_NAME]} ..." for word in words]
    return (", ".join(words[:4]) or "nothing") + (f" and {len(words) - 4} more" if len(words) > 4 else "")
