"""One trained network at several pruning rates."""

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock, RLock
from typing import Any

import torch
from torch import Tensor, nn

from ..analysis.frozen import Worth, worth_by_layer
from ..analysis.rate import set_rate
from ..analysis.recording import Recording, record
from ..cost.image_cost import ImageCost
from ..data.base import Batch
from ..deploy import PreparedModel, prepare
from ..environment import one_thread
from ..errors import UserError
from ..layers.saliency import passing_overflow
from ..layers.select import dynamic_layers

TIMED_CALLS = 5


@dataclass(frozen=True)
class Choice:
    """What one image got from a network, and what it chose."""

    probabilities: Tensor  # [classes]
    macs: float
    milliseconds: float  # of the prepared network, on one thread of this machine's CPU
    kept: dict[str, Tensor]  # by layer: the channels that each head keeps, [H, C] bool


_TRACING = RLock()  # to prepare a network torch follows all modules that are called meanwhile, by any thread


class NetworkAtRate:
    """The network at one pruning rate. It shares its weights with the others: only norms and gates are its own."""

    def __init__(self, network: nn.Module, input_size: tuple[int, ...]) -> None:
        self.network, self.input_size = network, input_size
        self._cost = ImageCost(network, input_size)
        self._running = Lock()  # whoever observes the gates must see one image only
        self._timing = Lock()

    @torch.no_grad()
    def choose(self, x: Tensor) -> Choice:
        """One image ``[3, height, width]``, normalized."""
        kept: dict[str, Tensor] = {}

        def note(name: str, saliency: Tensor, mask: Tensor) -> None:
            kept[name] = mask[0].cpu()

        with self._running, ExitStack() as stack:
            for name, layer in dynamic_layers(self.network):
                stack.enter_context(layer.gate.observed_by(partial(note, name)))
            with self._cost, passing_overflow(), _TRACING:
                logits = self.network(x[None])
            if not logits.isfinite().all():
                raise UserError("this image overflows in the network, which has no answer for it; look at another one")
            probabilities, macs = logits[0].float().softmax(0).cpu(), float(self._cost.macs[0])
        return Choice(probabilities, macs, self._milliseconds(x[None].cpu()), kept)

    @cached_property
    def _prepared(self) -> PreparedModel:
        network = self.copy().cpu().eval()
        with _TRACING:
            return prepare(network)

    def _milliseconds(self, image: Tensor) -> float:
        """What the image takes once the network is prepared; the median of some calls."""
        with self._timing, one_thread():
            self._prepared(image)
            return 1e3 * statistics.median(_seconds(self._prepared, image) for _ in range(TIMED_CALLS))

    def copy(self) -> nn.Module:
        with self._running:
            return copy.deepcopy(self.network, {id(weight): weight for weight in self.network.parameters()})

    def at(self, rate: float, calibration: Tensor) -> "NetworkAtRate":
        network = self.copy()
        with _TRACING:
            set_rate(network, rate, calibration)
        return NetworkAtRate(network, self.input_size)

    @torch.no_grad()
    def record(self, batches: Iterable[Tensor]) -> Recording:
        """What many images choose, on a copy, so that single ones need not wait."""
        network = self.copy()
        with passing_overflow(), record(network, examples=0) as recording:
            for images in batches:
                with _TRACING:
                    network(images)
        return recording

    def worth(self, recording: Recording, images: Sequence[Batch]) -> dict[str, Worth]:
        """What it is worth to each layer to look at the image, found on a copy."""
        network = self.copy()

        def call(x: Tensor) -> Tensor:
            with _TRACING:
                logits: Tensor = network(x)
            return logits

        return worth_by_layer(network, recording, images, call)


def _seconds(network: nn.Module, image: Tensor) -> float:
    begin = time.perf_counter()
    network(image)
    return time.perf_counter() - begin


class Once:
    """Makes each thing once, when it is first asked for; others that ask meanwhile wait for that one thing only."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}
        self._being_made: dict[Any, Lock] = {}
        self._looking_up = Lock()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        with self._looking_up:
            being_made = self._being_made.setdefault(key, Lock())
        with being_made:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]
