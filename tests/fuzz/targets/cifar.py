"""CIFAR's original archives: pickles that say something else, bytes that are too few, archives of another make."""

import gzip
import pickle
import pickletools
from functools import cache
from random import Random

import torch

from dgconv.data import load_data
from dgconv.data.cifar_archive import FORMS, Form
from tests.cifar_archives import files_of, packed
from tests.fuzz.damage import Files, damage, folder_of, restore, store
from tests.fuzz.outcome import Wrong
from tests.fuzz.values import NUMBERS

CLASSES = {"cifar10": 10, "cifar100": 100}
OPCODES = tuple(opcode.code.encode("latin-1") for opcode in pickletools.opcodes)
WORDS = (*OPCODES, b"cos\nsystem\n", b"cnumpy\nndarray\n", b"c_codecs\nencode\n", b"U\x02u1", b"U\x01O", b"M\x00\x0c")


@cache
def _files(name: str, number: int) -> tuple[Form, Files]:
    form = FORMS[name][number]
    return form, files_of(form, CLASSES[name], images=1)


def make(rng: Random) -> Files:
    form, files = _files(rng.choice(list(FORMS)), rng.choice((0, 0, 0, 1)))
    name, changed = rng.choice((form.train[0], form.test, form.names)), dict(files)
    if rng.random() < 0.9:
        changed[name] = _damaged(changed[name], rng)
    if rng.random() < 0.6:
        return changed
    archive = packed(form, changed)
    if rng.random() < 0.5:
        archive = gzip.compress(_with_another_header(gzip.decompress(archive), rng), 1, mtime=0)
    return {form.archive: damage(archive, rng) if rng.random() < 0.3 else archive}


def _damaged(content: bytes, rng: Random) -> bytes:
    """Mostly where the instructions of a pickle are, which are few beside the pixels."""
    if rng.random() < 0.2:
        return damage(content, rng, WORDS)
    if rng.random() < 0.2:
        return pickle.dumps({"data": rng.choice(NUMBERS), "labels": [rng.choice(NUMBERS)]}, rng.randrange(6))
    place = max(content.find(b"numpy"), 0) if rng.random() < 0.7 else rng.randrange(len(content))
    first, last = max(0, place - 60), min(len(content), place + 120)
    return content[:first] + damage(content[first:last], rng, WORDS) + content[last:]


def _with_another_header(tar: bytes, rng: Random) -> bytes:
    headers = [place for place in range(0, len(tar), 512) if tar[place + 257 : place + 262] == b"ustar"]
    place = rng.choice(headers)
    return tar[:place] + damage(tar[place : place + 512], rng)[:512].ljust(512, b"\0") + tar[place + 512 :]


def run(files: Files) -> str:
    with folder_of(files) as folder:
        name = (
            "cifar100" if any(form.archive in files or form.test in files for form in FORMS["cifar100"]) else "cifar10"
        )
        data = load_data(name, folder)
        for split in (data.train, data.test):
            images, labels = next(iter(split.batches(2, train=False)))
            if (
                not 0 < len(images) == len(labels) <= 2
                or images.shape[1:] != (3, 32, 32)
                or not images.isfinite().all()
            ):
                raise Wrong(f"a batch has {list(images.shape)} images and {list(labels.shape)} labels")
            if labels.dtype != torch.int64 or int(labels.min()) < 0 or int(labels.max()) >= CLASSES[name]:
                raise Wrong(f"labels {labels.tolist()} of {CLASSES[name]} classes")
        if len(data.classes) != CLASSES[name] or not all(isinstance(each, str) for each in data.classes):
            raise Wrong(f"{len(data.classes)} classes")
    return "accepted"


__all__ = ["make", "restore", "run", "store"]
