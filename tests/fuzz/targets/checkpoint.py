"""Checkpoints, from which a training goes on."""

import json
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import torch

from dgconv.data import load_data
from dgconv.runs import RunFolder
from dgconv.runs.checkpoint import TEXTS, save_checkpoint
from dgconv.runs.names import CHECKPOINT
from dgconv.runs.tensors import read_tensors
from dgconv.train.recipe import Recipe
from dgconv.train.run import Run
from dgconv.train.run_state import restore as put_back
from dgconv.train.run_state import take_checkpoint
from dgconv.train.threshold import GlobalThreshold
from tests.fuzz.damage import Files, damage, folder_of, restore, store
from tests.fuzz.outcome import Wrong
from tests.fuzz.tensors import TensorTexts, change_file, forged
from tests.fuzz.values import change_value

FLIPPED = "flipped"  # a file whose being there says that a bit is wrong
TINY = {"stages": (1,), "growth": (4,), "epochs": 3, "batch_size": 16, "seed": 1}


@cache
def _runs() -> list[tuple[Run, TensorTexts, bytes]]:
    """Two trainings under way, and what they write, also as it is in a file."""
    found = []
    for model in ("condensenet20_dgc", "condensenet20_dgcg"):
        with torch.enable_grad():
            run = Run(Recipe.of(model=model, **TINY), Path(mkdtemp()), load_data("digits"), torch.device("cpu"))
            steps = run.advance()
            for _ in range(2):
                next(steps)
        for member in run.controllers.members:
            if isinstance(member, GlobalThreshold):
                member.library = [torch.linspace(0, 1, 20), torch.linspace(0, 2, 20)]
        checkpoint = take_checkpoint(run)
        assert checkpoint is not None
        checkpoint.position.seconds = 1.0  # each time the same
        save_checkpoint(run.folder, checkpoint)
        file = TensorTexts(*read_tensors(run.folder / CHECKPOINT))
        found.append((run, file, file.to_bytes()))
    return found


def make(rng: Random) -> Files:
    _, file, content = rng.choice(_runs())
    match rng.randrange(5):
        case 0 | 1:
            texts = {name: json.loads(text) for name, text in file.texts.items()}
            for _ in range(rng.choice((1, 1, 2))):
                name = rng.choice(TEXTS)
                texts[name] = change_value(texts[name], rng)
            written = {name: json.dumps(text) for name, text in texts.items()}
            if rng.random() < 0.2:
                name = rng.choice(TEXTS)
                written[name] = damage(written[name].encode(), rng).decode("latin-1")
            return {CHECKPOINT: file._replace(texts=written).to_bytes()}
        case 2 | 3:
            return {CHECKPOINT: change_file(file, rng)}
        case _:
            return {CHECKPOINT: forged(content, rng), FLIPPED: b""}


def run(files: Files) -> str:
    with folder_of(files) as folder:
        checkpoint = RunFolder(folder).checkpoint
        if FLIPPED in files:
            raise Wrong("a bit is wrong, and nobody said so")
        recipe = Recipe.from_dict(checkpoint.recipe, str(folder))
        for under_way, *_ in _runs():
            if under_way.recipe.model == recipe.model:
                under_way.folder = folder
                put_back(under_way, checkpoint)
                return "accepted"
    return "undecided"  # of another network, which is not built here


__all__ = ["make", "restore", "run", "store"]
