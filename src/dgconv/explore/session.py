"""A run to explore: every question the page asks, answered in plain values."""

import base64
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..analysis.frozen import some_images
from ..analysis.rate import CALIBRATION_BATCH, CALIBRATION_IMAGES, calibration_images
from ..analysis.recording import Recording
from ..analysis.trained_run import TrainedRun
from ..cost.macs import count_macs
from ..data.encoded_split import EncodedSplit
from ..data.sample import sample
from ..errors import UserError
from ..layers.gate import check_pruning_rate
from ..layers.select import dynamic_layers
from .images import Images, Picture
from .networks import NetworkAtRate, Once

RATES = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # and the trained one
ENOUGH_PIXELS = 1 << 20  # in the training images that batch norms adapt to, where the images are large
AVERAGED, AVERAGED_BATCH = 250, 50  # test images that make the average one; a count of them fits a byte
TOP = 5
SAME_RATE = 1e-6


class Session:
    """One run, its images, and its network at each of several pruning rates."""

    def __init__(self, run: TrainedRun, rates: Sequence[float] = RATES) -> None:
        if not run.is_dynamic:
            raise UserError(
                f"{run.name} has no dynamic layers, so its images choose nothing. Explore a _dgc or _dgcg model"
            )
        self.run, self.data = run, run.data
        for split in (self.data.train, self.data.test):
            if isinstance(split, EncodedSplit):
                split.workers = 0  # the server has threads, and a process that has them must not fork
        self.images = Images(self.data)
        self.layers = {name: (layer.heads, layer.in_channels) for name, layer in dynamic_layers(run.model)}
        self.trained_rate = self._asked_last = run.trained_rate
        for rate in rates:
            check_pruning_rate(rate, "rates")
        others = {rate for rate in rates if abs(rate - self.trained_rate) > SAME_RATE}
        self.rates = sorted({*others, self.trained_rate})
        self._made = Once()

    def describe(self, ids: Sequence[str]) -> dict[str, Any]:
        """What does not depend on an image, and the images to offer."""
        return {
            "run": self.run.name,
            "model": self.run.config["model"]["name"],
            "data": self.run.task,
            "gate": "global" if self.run.has_global_gate else "head",
            "rates": self.rates,
            "trainedRate": self.trained_rate,
            "denseMacs": count_macs(self.run.model, self.data.input_size).dense_macs,
            "testImages": len(self.data.test),
            "calibration": calibration_count(self.data.input_size),
            "layers": [{"name": name, "heads": h, "channels": c} for name, (h, c) in self.layers.items()],
            "images": [self.show(self.images[id]) for id in ids],
        }

    def show(self, picture: Picture) -> dict[str, Any]:
        """An image as the page lists it."""
        label = None if picture.label is None else self.data.classes[picture.label]
        return {"id": picture.id, "name": picture.name, "label": label, "picture": self.images.data_uri(picture)}

    def look(self, id: str, rate: float) -> dict[str, Any]:
        """One image at one rate: the likeliest classes, the MACs, the channels each head keeps."""
        self._asked_last = rate
        x = self.images[id].x.to(self.run.device)
        choice = self.network(rate).choose(x)
        likeliest = choice.probabilities.topk(min(TOP, len(choice.probabilities)))
        return {
            "top": [
                [self.data.classes[index], value]
                for value, index in zip(likeliest.values.tolist(), likeliest.indices.tolist(), strict=True)
            ],
            "macs": choice.macs,
            "milliseconds": choice.milliseconds,
            "kept": [pack_bits(choice.kept[name]) for name in self.layers],
        }

    def average(self, rate: float) -> dict[str, Any]:
        """How many of a sample of the test images keep each channel, at one rate."""
        recording = self._made.get(("average", rate), lambda: self._record(rate))
        return {
            "images": recording.images,
            "sameForAll": same_for_all(recording),
            "kept": [pack_bytes(recording.layers[name].kept) for name in self.layers],
        }

    def worth(self) -> dict[str, Any]:
        """By how many points the error rises, at the trained rate, if a layer does not look at the image."""
        worth: dict[str, Any] = self._made.get("worth", self._freeze)
        return worth

    def network(self, rate: float) -> NetworkAtRate:
        if rate not in self.rates:
            known = ", ".join(f"{known:.4g}" for known in self.rates)
            raise UserError(f"the pruning rate {rate:g} is not offered here; take one of {known}")
        network: NetworkAtRate = self._made.get(("network", rate), lambda: self._adapt(rate))
        return network

    def prepare_all(self, stop: Event) -> None:
        """Every rate, the nearest to the last one asked for first: in the background, so that nobody need wait."""
        rates = list(self.rates)
        while rates:
            rate = min(rates, key=lambda rate: abs(rate - self._asked_last))
            rates.remove(rate)
            for prepare in (self.network, self.average):
                if stop.is_set():
                    return
                with suppress(UserError):  # whoever asks for this rate is told
                    prepare(rate)
        if not stop.is_set():
            self.worth()

    def _adapt(self, rate: float) -> NetworkAtRate:
        if rate == self.trained_rate:
            return NetworkAtRate(self.run.model, self.data.input_size)
        return self.network(self.trained_rate).at(rate, self._calibration())

    def _calibration(self) -> Tensor:
        images: Tensor = self._made.get("calibration", lambda: calibration_images(self.data.train, self.run.device))
        return images[: calibration_count(self.data.input_size)]

    def _freeze(self) -> dict[str, Any]:
        network, images = self.network(self.trained_rate), some_images(self.run.model, self.data, self.run.device)
        recording = self._made.get(("average", self.trained_rate), lambda: self._record(self.trained_rate))
        worth = network.worth(recording, images)
        return {
            "images": sum(len(labels) for _, labels in images),
            "layers": [[worth[name].choice, worth[name].gate] for name in self.layers],
        }

    def _record(self, rate: float) -> Any:
        return self.network(rate).record(sample(self.run.data.test, AVERAGED, AVERAGED_BATCH, self.run.device))


def same_for_all(recording: Recording) -> float:
    """The share of the choices, to keep a channel in a head or not, that come out the same for every image."""
    same = sum(int(((layer.kept == 0) | (layer.kept == layer.images)).sum()) for layer in recording.layers.values())
    return same / sum(layer.kept.numel() for layer in recording.layers.values())


def calibration_count(input_size: tuple[int, ...]) -> int:
    """As many images as ``dgconv eval`` takes, but fewer large ones: they take long and have pixels enough."""
    _, height, width = input_size
    return min(CALIBRATION_IMAGES, max(CALIBRATION_BATCH, ENOUGH_PIXELS // (height * width)))


def pack_bits(mask: Tensor) -> str:
    """Eight decisions a byte, the first in the highest bit, as base64."""
    return base64.b64encode(np.packbits(mask.numpy().reshape(-1)).tobytes()).decode()


def pack_bytes(counts: Tensor) -> str:
    """Counts up to 255, as base64."""
    return base64.b64encode(counts.to(torch.uint8).numpy().tobytes()).decode()
