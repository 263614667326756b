"""Run folders: a config, weights and metrics that were edited, swapped or made up."""

import json
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

from dgconv.models import create_model
from dgconv.models.storage import input_size_of, load_model, save_model
from dgconv.runs import RunFolder
from dgconv.runs.names import CONFIG, METRICS, WEIGHTS
from dgconv.runs.tensors import read_tensors
from dgconv.train.recipe import Recipe
from tests.fuzz.damage import Files, damage, folder_of, restore, store
from tests.fuzz.outcome import Wrong
from tests.fuzz.tensors import TensorTexts, change_file, forged
from tests.fuzz.values import change_value

FLIPPED = "flipped"  # a file whose being there says that a bit of the weights is wrong
TINY = {"stages": (1,), "growth": (4,)}
MODELS: dict[str, dict[str, Any]] = {
    "condensenet20_dgc": TINY | {"heads": 2},
    "condensenet20_dgcg": TINY,
    "condensenet20_lgc": TINY,
    "condensenet20_sgc": TINY,
    "resnet20_dgc": {"width": 4, "heads": 2},
}
SIDE = 16  # pixels
LINE = {"epoch": 1, "train_loss": 1.5, "train_error": 50.0, "test_error": 40.0, "seconds": 1.0}


@cache
def _folders() -> list[tuple[str, TensorTexts, bytes]]:
    """Config and weights of real ones, these as they are in a file, too."""
    found = []
    for name, options in MODELS.items():
        extra = {"recipe": Recipe.of(model=name, **options).to_dict(), "classes": ["a", "b", "c"], "epochs_done": 1}
        with TemporaryDirectory() as folder:
            torch.manual_seed(0)
            model = create_model(name, num_classes=3, **options)
            save_model(model, folder, **extra, input_size=(3, SIDE, SIDE), environment={"hardware": "one"})
            weights = TensorTexts(read_tensors(Path(folder) / WEIGHTS).tensors, {})
            found.append(((Path(folder) / CONFIG).read_text(), weights, weights.to_bytes()))
    return found


def make(rng: Random) -> Files:
    original, weights, content = rng.choice(_folders())
    config: Any = json.loads(original)
    metrics: Any = [LINE | {"epoch": epoch + 1} for epoch in range(3)]
    marks: Files = {}
    match rng.randrange(6):
        case 0 | 1:
            for _ in range(rng.choice((1, 1, 2, 4))):
                if isinstance(config, dict) and "model" in config and rng.random() < 0.6:
                    config["model"] = change_value(config["model"], rng)
                else:
                    config = change_value(config, rng)
        case 2 | 3:
            content = change_file(weights, rng)
        case 4:
            metrics = change_value(metrics, rng)
        case 5:
            content, marks = forged(content, rng), {FLIPPED: b""}
    text = json.dumps(config).encode()
    lines = "\n".join(map(json.dumps, metrics if isinstance(metrics, list) else [metrics])).encode()
    if not marks and rng.random() < 0.15:
        text = damage(text, rng)
    if rng.random() < 0.15:
        lines = damage(lines, rng)
    return {CONFIG: text, WEIGHTS: content, METRICS: lines} | marks


def run(files: Files) -> str:
    with folder_of(files) as folder:
        run = RunFolder(folder)
        model = load_model(run)
        if FLIPPED in files:
            raise Wrong("a bit of the weights is wrong, and nobody said so")
        size = input_size_of(run, model)
        Recipe.of_run(run)
        assert isinstance(run.metrics, list)
        if size == (3, SIDE, SIDE):
            y = model(torch.zeros(1, *size))
            if y.shape != (1, model.config["num_classes"]):
                raise Wrong(f"{model.config} gives {list(y.shape)}")
    return "accepted"


__all__ = ["make", "restore", "run", "store"]
