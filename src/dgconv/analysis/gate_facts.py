"""How much the gates of a trained network depend on the image, in a few numbers."""

import statistics
from typing import Any

import torch
import torch.nn.functional as F

from ..layers import SaliencyGenerator
from ..layers.select import dynamic_layers
from ..train.evaluate import evaluate
from .frozen import freeze_gates
from .likeness import measure_likeness
from .recording import LayerRecord
from .trained_run import TrainedRun

GENERATOR = ("weight1", "weight2", "bias")  # parameters of a saliency generator


def measure_gates(run: TrainedRun) -> dict[str, Any]:
    """Facts over all test images of a run with weights and dynamic layers. Errors are in percent."""
    recording, evaluation = run.recorded
    start = _untrained(run)
    probabilities = [layer.pruning_probability for layer in recording.layers.values()]
    jumping = [float(((p > 0) & (p < 1)).double().mean()) for p in probabilities]
    generators = [layer.generator for _, layer in dynamic_layers(run.model)]
    return {
        "images": recording.images,
        "overlap": measure_likeness(recording).means,
        "jumping": statistics.mean(jumping),
        "variation": statistics.mean(map(_variation, recording.layers.values())),
        "error": evaluation.error,
        "error_one_choice": _error_frozen(run, saliencies=False),
        "error_one_gate": _error_frozen(run, saliencies=True),
        "generator": {
            name: statistics.mean(getattr(generator, name).detach().abs().mean().item() for generator in generators)
            for name in GENERATOR
        },
        "like_start": {name: statistics.mean(_cosines(generators, start, name)) for name in GENERATOR},
    }


def _variation(layer: LayerRecord) -> float:
    """Standard deviation of a saliency over the images, against the mean: of the channels that most images keep."""
    kept = layer.pruning_probability < 0.5
    return float((layer.saliency_std[kept] / layer.saliency_mean[kept].abs()).nanmean()) if kept.any() else 0.0


def _error_frozen(run: TrainedRun, *, saliencies: bool) -> float:
    with freeze_gates(run.model, run.recording, saliencies=saliencies):
        return evaluate(run.model, run.data.test, device=run.device).error


def _untrained(run: TrainedRun) -> list[SaliencyGenerator]:
    """The generators as the run began: the seed decides them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.recipe.training.seed)
        model = run.recipe.build_model(run.num_classes)
    return [layer.generator for _, layer in dynamic_layers(model)]


@torch.no_grad()
def _cosines(some: list[SaliencyGenerator], others: list[SaliencyGenerator], name: str) -> list[float]:
    """Cosines between their parameters of this name, layer by layer."""
    pairs = [(getattr(a, name).flatten(), getattr(b, name).flatten()) for a, b in zip(some, others, strict=True)]
    return [float(F.cosine_similarity(a.double(), b.double(), dim=0)) for a, b in pairs]
