"""Error on a data set, and how much the network really pruned on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Split
from ..layers.select import dynamic_layers


@dataclass
class PrunedCount:
    """Gates seen and gates closed, over all layers, heads and images."""

    closed: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return sum(self.closed.values()) / max(1, sum(self.seen.values()))


@dataclass(frozen=True)
class Evaluation:
    images: int
    loss: float
    error: float  # top-1, in percent
    pruned_share: float | None  # measured; None for a network without dynamic layers


@contextmanager
def counting_gates(model: nn.Module) -> Iterator[PrunedCount]:
    """Count what the gates do while the model runs."""
    count = PrunedCount()
    handles = []
    for name, layer in dynamic_layers(model):

        def watch(gate: nn.Module, args: tuple[Tensor], _: Tensor, name: str = name) -> None:
            mask: Tensor = gate.mask(args[0])  # type: ignore[operator]
            count.seen[name] = count.seen.get(name, 0) + mask.numel()
            count.closed[name] = count.closed.get(name, 0) + int((~mask).sum())

        handles.append(layer.gate.register_forward_hook(watch))
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def evaluate(model: nn.Module, split: Split, batch_size: int = 256, device: torch.device | str = "cpu") -> Evaluation:
    """Top-1 error, mean loss and measured pruning rate over every image of a split, once."""
    was_training = model.training
    model.eval()
    images, wrong, loss = 0, 0, 0.0
    with counting_gates(model) as gates:
        for x, target in split.batches(batch_size, train=False, device=device):
            logits = model(x).float()
            images += len(target)
            wrong += int((logits.argmax(1) != target).sum())
            loss += float(F.cross_entropy(logits, target, reduction="sum"))
    model.train(was_training)
    return Evaluation(images, loss / images, 100 * wrong / images, gates.share if gates.seen else None)
