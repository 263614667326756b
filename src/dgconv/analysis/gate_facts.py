"""How much the gates of a trained network depend on the image, in a few numbers."""

import statistics
from typing import Any

from ..layers.select import dynamic_layers
from .likeness import measure_likeness
from .run_folder import RunFolder

GENERATOR = ("weight1", "weight2", "bias")  # parameters of a saliency generator


def measure_gates(run: RunFolder) -> dict[str, Any]:
    """Over all test images of a run with weights and dynamic layers."""
    recording = run.recording
    probabilities = [layer.pruning_probability for layer in recording.layers.values()]
    jumping = [float(((p > 0) & (p < 1)).double().mean()) for p in probabilities]
    generators = [layer.generator for _, layer in dynamic_layers(run.model)]
    return {
        "images": recording.images,
        "overlap": measure_likeness(recording).means,
        "jumping": statistics.mean(jumping),
        "generator": {
            name: statistics.mean(getattr(generator, name).detach().abs().mean().item() for generator in generators)
            for name in GENERATOR
        },
    }
