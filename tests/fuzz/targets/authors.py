"""Checkpoints of the authors' code: pickles, which are followed without an unpickler."""

import io
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor

from dgconv.models import import_authors_checkpoint
from dgconv.models.torch_files import MAGIC
from tests.fuzz.damage import Files, damage, folder_of, restore, store
from tests.fuzz.mutate import change_tensor
from tests.fuzz.values import NUMBERS, TEXTS

NAME = "model.tar"
HEADS = 2
WORDS = (
    *(b"ctorch._utils\n_rebuild_tensor_v2\n", b"cposix\nsystem\n", b"ccollections\nOrderedDict\n", b"h\0", b"\x8a\xff"),
    *(bytes([code]) for code in b"()Rb}]02t.Quasl"),
)


def _norm(state: dict[str, Tensor], name: str, channels: int) -> None:
    for part in ("weight", "bias", "running_mean", "running_var"):
        state[f"{name}.{part}"] = torch.ones(channels)


def _layer(state: dict[str, Tensor], name: str, inputs: int, outputs: int, size: int) -> None:
    state[f"{name}._inactive_channels"] = torch.tensor([float(inputs // 2)])
    _norm(state, f"{name}.norm", inputs)
    for head in range(HEADS):
        state[f"{name}.headconv_{head}.conv.weight"] = torch.randn(outputs // HEADS, inputs, size, size)
        state[f"{name}.headconv_{head}.fc1.weight"] = torch.randn(inputs // 8, inputs)
        state[f"{name}.headconv_{head}.fc2.weight"] = torch.randn(inputs, inputs // 8)
        state[f"{name}.headconv_{head}.fc2.bias"] = torch.randn(inputs)


@cache
def _states() -> list[dict[str, Tensor]]:
    """A DydenseNet and a dyresnet, as small as can be."""
    torch.manual_seed(0)
    dense = {"features.init_conv.weight": torch.randn(8, 3, 3, 3)}
    channels, growth = 8, 4
    for stage in (1, 2):
        name = f"features.denseblock_{stage}.denselayer_1"
        _layer(dense, f"{name}.conv_1", channels, 4 * growth, 1)
        _norm(dense, f"{name}.conv_2.norm", 4 * growth)
        dense[f"{name}.conv_2.conv.weight"] = torch.randn(growth, growth, 3, 3)
        channels += growth
    _norm(dense, "bn_last", channels)
    dense |= {"classifier.weight": torch.randn(3, channels), "classifier.bias": torch.randn(3)}
    residual = {"conv1.weight": torch.randn(8, 3, 7, 7)}
    _norm(residual, "bn1", 8)
    for part in ("conv1", "conv2"):
        _layer(residual, f"layer1.0.{part}", 8, 8, 3)
        _norm(residual, f"layer1.0.bn{part[-1]}", 8)
    residual |= {"fc.weight": torch.randn(3, 8), "fc.bias": torch.randn(3)}
    return [dense, residual]


def make(rng: Random) -> Files:
    state: dict[Any, Any] = dict(rng.choice(_states()))
    if rng.random() < 0.75:
        for _ in range(rng.choice((1, 1, 2, 4))):
            _change_state(state, rng)
    content: Any = {"epoch": 3, "state_dict": OrderedDict(state), "best_prec1": 7.5}
    if rng.random() < 0.05:
        content = rng.choice((state, [content], {"state_dict": list(state.items())}, {"state_dict": content}))
    data = _saved(content, rng)
    return {NAME: damage(data, rng, WORDS) if rng.random() < 0.15 else data}


class _Pickler(pickle.Pickler):
    """As torch.save has it, but for the names of storages, which are their places in memory there."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.storages: dict[int, tuple[str, Any]] = {}

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.storage.TypedStorage):
            return None
        key, _ = self.storages.setdefault(value._cdata, (str(len(self.storages)), value))
        return "storage", getattr(torch, value._pickle_storage_type()), key, "cpu", value._size()


def _saved(content: Any, rng: Random) -> bytes:
    """As torch.save writes it, now or before version 1.6; with some of the instructions changed, or none."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(content)
    instructions = file.getvalue()
    if rng.random() < 0.35:
        instructions = _change_instructions(instructions, rng)
    storages = [(key, value._size(), _content(value)) for key, value in pickler.storages.values()]
    if rng.random() < 0.3:
        head = [pickle.dumps(part, 2) for part in (MAGIC, 1001, {"little_endian": True})]
        keys = pickle.dumps([key for key, *_ in storages], 2)
        numbers = b"".join(count.to_bytes(8, "little") + numbers for _, count, numbers in storages)
        return b"".join([*head, instructions, keys, numbers])
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as entries:
        for name, part in (("data.pkl", instructions), *((f"data/{key}", numbers) for key, _, numbers in storages)):
            entry = zipfile.ZipInfo(f"archive/{name}")
            entry.compress_type = zipfile.ZIP_DEFLATED if rng.random() < 0.003 else zipfile.ZIP_STORED
            entries.writestr(entry, part)
    return archive.getvalue()


def _content(storage: Any) -> bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage._untyped_storage).numpy().tobytes()


def _change_state(state: dict[Any, Any], rng: Random) -> None:
    if not state:
        return
    name = rng.choice(list(state))
    value = state[name]
    counts = [key for key in state if str(key).endswith("_inactive_channels")]
    match rng.randrange(9):
        case 0:
            del state[name]
        case 1:
            number = str(rng.choice((*NUMBERS, "9" * rng.choice((10, 300, 5000)))))
            state[str(name).replace(rng.choice(("0", "1", "2")), number)] = state.pop(name)
        case 2:
            state[rng.choice((*TEXTS, 7, f"module.{name}"))] = value
        case 3 if isinstance(value, Tensor) and 0 < value.numel() < 10**6:
            size = rng.choice((value.shape, (10**9,), (2**31, 8)))
            state[name] = value.flatten()[0].expand(size)
        case 4 if counts:
            numbers = (-1.0, 0.0, 1.0, 7.0, 8.0, 0.5, float("nan"), float("inf"), 1e20)
            state[rng.choice(counts)] = torch.tensor([rng.choice(numbers)])
        case 5:
            state[name] = rng.choice((None, 3, "text", [value], {"a": value}, torch.float32, torch.Size([2])))
        case _ if isinstance(value, Tensor) and value.numel() < 10**6:
            state[name] = change_tensor(value.contiguous(), rng)


def _change_instructions(data: bytes, rng: Random) -> bytes:
    """One by one: left out, repeated, moved, or with another argument."""
    places = [place for _, _, place in pickletools.genops(data) if place is not None]
    ends = [*places[1:], places[-1] + 1]
    parts = [data[begin:end] for begin, end in zip(places, ends, strict=True)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        index, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        match rng.randrange(6):
            case 0 if len(parts) > 1:
                parts.pop(index)
            case 1:
                parts.insert(other, parts[index])
            case 2:
                parts[index], parts[other] = parts[other], parts[index]
            case 3:
                parts.insert(index, rng.choice(WORDS))
            case 4:
                parts[index:index] = parts[index : index + 10] * rng.choice((1, 3, 1000))
            case _:
                parts[index] = parts[index][:1] + damage(parts[index][1:], rng)
    return b"".join(parts)


def run(files: Files) -> str:
    with folder_of(files) as folder:
        model = import_authors_checkpoint(folder / NAME)
    model(torch.zeros(1, 3, 32, 32))
    return "accepted"


__all__ = ["make", "restore", "run", "store"]
