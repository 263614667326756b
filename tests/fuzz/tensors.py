"""Files of named tensors and texts, changed so that they stay such files, or nearly."""

import json
from random import Random
from typing import Any, NamedTuple

from torch import Tensor

from dgconv.runs import tensors
from tests.fuzz.damage import damage, flip
from tests.fuzz.mutate import change_tensor
from tests.fuzz.values import NUMBERS, change_value, other_value


class TensorTexts(NamedTuple):
    tensors: dict[str, Tensor]
    texts: dict[str, str]

    def to_bytes(self) -> bytes:
        """With checksums that are right; the same bytes each time, where safetensors leaves the order to chance."""
        content = tensors.to_bytes(self.tensors, self.texts)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + content[8 + length :]


def change_file(file: TensorTexts, rng: Random) -> bytes:
    """The file with other tensors, another header or other bytes."""
    named = dict(file.tensors)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _change_tensors(named, rng)
    content = file._replace(tensors=named).to_bytes()
    if rng.random() < 0.3:
        return _change_header(content, rng)
    return damage(content, rng) if rng.random() < 0.1 else content


def _change_tensors(named: dict[str, Tensor], rng: Random) -> None:
    if not named:
        return
    name = rng.choice(list(named))
    counts = [name for name, value in named.items() if not value.is_floating_point() and value.element_size() == 8]
    match rng.randrange(6):
        case 0:
            del named[name]
        case 1:
            named[rng.choice((f"{name}x", "", "weight", f"model.{name}"))] = named.pop(name)
        case 2:
            named[name] = named[rng.choice(list(named))].clone()
        case 3 if counts:  # of channels to keep, say
            name = rng.choice(counts)
            named[name] = named[name].clone().fill_(rng.choice(NUMBERS))
        case _:
            named[name] = change_tensor(named[name], rng)


def _change_header(content: bytes, rng: Random) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header: Any = json.loads(content[8 : 8 + length])
    for _ in range(rng.choice((1, 1, 2))):
        header = change_value(header, rng)
    text = json.dumps(header).encode()
    said = len(text) if rng.random() < 0.95 else other_value(len(text), rng)
    said = said % 2**64 if isinstance(said, int) else 0
    return said.to_bytes(8, "little") + text + content[8 + length :]


def forged(content: bytes, rng: Random) -> bytes:
    """One bit of the tensors, or of what is said of them, is wrong."""
    while True:
        changed = flip(content, rng)
        if _means_something_else(content, changed):
            return changed


def _means_something_else(content: bytes, changed: bytes) -> bool:
    """A blank that became a tab in a header, say, changes nothing."""
    length = int.from_bytes(content[:8], "little")
    if content[:8] != changed[:8] or content[8 + length :] != changed[8 + length :]:
        return True
    try:
        return bool(json.loads(content[8 : 8 + length]) != json.loads(changed[8 : 8 + length]))
    except ValueError:
        return True
