"""Bytes changed without a thought of what they mean, and files of such bytes."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

Files = dict[str, bytes]  # by name
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
LONGEST = 1 << 20  # bytes that something may become by what is inserted


def damage(data: bytes, rng: Random, words: Sequence[bytes] = ()) -> bytes:
    """One change or a few. ``words`` are what a reader may look for."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        place = rng.randrange(len(changed) + 1)
        part = rng.choice((1, 1, 2, 4, 8, 16, 64, 300))
        match rng.randrange(9):
            case 0 | 1 if changed:
                changed[place % len(changed)] ^= 1 << rng.randrange(8)
            case 2:
                changed[place : place + part] = rng.randbytes(part)
            case 3:
                del changed[place : place + part]
            case 4 if len(changed) < LONGEST:
                changed[place:place] = changed[rng.randrange(len(changed) + 1) :][:part]
            case 5:
                width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
                changed[place : place + width] = (rng.choice(NUMBERS) % 256**width).to_bytes(width, order)
            case 6 if rng.random() < 0.3:
                del changed[place:]
            case 7 if words:
                word = rng.choice(words)
                changed[place : place + rng.choice((0, len(word)))] = word
            case 8 if changed:
                changed[place % len(changed)] = (changed[place % len(changed)] + rng.choice((-1, 1))) % 256
    return bytes(changed)


def flip(data: bytes, rng: Random) -> bytes:
    """One bit of it."""
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def store(files: Files) -> bytes:
    """As one text, for the corpus."""
    return json.dumps({name: content.decode("latin-1") for name, content in files.items()}, indent=1).encode()


def restore(data: bytes) -> Files:
    return {name: content.encode("latin-1") for name, content in json.loads(data).items()}


@contextmanager
def folder_of(files: Files) -> Iterator[Path]:
    """A folder with these files, for as long as they are looked at."""
    folder = Path(tempfile.mkdtemp())
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        yield folder
    finally:
        shutil.rmtree(folder)
