"""Error on a data set, and how much the network really pruned on it."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Data, Split
from ..errors import UserError
from ..layers.mode import evaluating
from ..layers.saliency import passing_overflow
from ..layers.select import dynamic_layers
from ..layers.watch import counting_gates
from .distributed import rank, sum_over_ranks, world_size
from .graphs import CapturedCall

NAMED = 8  # of the images that overflow

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """Errors are in percent. An image overflows for which the network gives no finite numbers: a wrong answer."""

    images: int  # without those that were skipped
    loss: float  # the mean of those that do not overflow
    error: float
    error_top5: float
    pruned_share: float | None  # measured; None for a network without dynamic layers
    skipped: int = 0  # corrupt images
    overflowing: tuple[int, ...] = ()  # the numbers of those images, counted from 0 without those that were skipped

    @property
    def overflow(self) -> str | None:
        """What is to be said of images that overflow, if there are any."""
        if not self.overflowing:
            return None
        more = ", ..." if len(self.overflowing) > NAMED else ""
        return (
            f"{len(self.overflowing)} of {self.images} images overflow (number "
            f"{', '.join(map(str, self.overflowing[:NAMED]))}{more}): the network has no finite answer for them, and "
            "they count as wrong. Its saliencies grow with the image, layer by layer, and its batch norms have seen "
            "little. Train longer, with a lower `learning_rate`, or start with `saliency_start` calm or ones"
        )


class Evaluator:
    """Top-1 and top-5 error, mean loss and measured pruning rate over every image of a split, once.

    On a GPU the forward pass is one captured graph, made at the first call. Under ``torch.distributed`` each rank
    takes its share of every batch, and the result is that of all.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:
        self.memory_format = memory_format
        self.model, self.device, self.dtype = model, torch.device(device), dtype
        self.has_gates = any(True for _ in dynamic_layers(model))
        self.gates = torch.zeros(2, dtype=torch.float64, device=self.device)  # closed, seen
        self.captured: CapturedCall | None = None

    def __call__(self, split: Split, batch_size: int | None = None) -> Evaluation:
        return self.begin(split, batch_size)()

    @torch.no_grad()
    def begin(self, split: Split, batch_size: int | None = None) -> Callable[[], Evaluation]:
        """Queue all the work; the function it returns waits for the device and gives the result."""
        _check_split(split)
        batch_size = batch_size or images_at_once(self.device)
        self.gates.zero_()
        seen, sums = 0, torch.zeros(3, dtype=torch.float64, device=self.device)  # loss, wrong, wrong among five
        overflowing = torch.zeros(len(split), dtype=torch.float64, device=self.device)
        skipped: list[int] = []
        batches = split.batches(
            batch_size, train=False, device=self.device, shard=(rank(), world_size()), on_skip=skipped.append
        )
        with evaluating(self.model), passing_overflow():
            for x, target in batches:
                logits = self._forward(x)
                answers = logits.isfinite().all(1)  # an image that overflows has none, whatever its largest logit is
                five = logits.topk(min(5, logits.shape[1]), dim=1).indices
                overflowing[seen * world_size() + rank() :: world_size()][: len(target)] = (~answers).double()
                seen += len(target)
                losses = F.cross_entropy(logits, target, reduction="none")
                sums += torch.stack(
                    [
                        losses.where(answers, 0).sum(),
                        len(target) - (answers & (logits.argmax(1) == target)).sum(),
                        len(target) - (answers & (five == target[:, None]).any(1)).sum(),
                    ]
                ).double()
        counts, gates = torch.tensor([seen, sum(skipped)], device=self.device), self.gates.clone()
        return lambda: self._result(counts, sums, gates, overflowing)

    def _result(self, counts: Tensor, sums: Tensor, gates: Tensor, overflowing: Tensor) -> Evaluation:
        """The result from the counts of this rank's images, used and skipped, and its sums over them."""
        images, left_out = sum_over_ranks(counts).tolist()
        if not images:
            raise UserError(f"all {left_out} images to evaluate on are corrupt; restore at least some of them")
        loss, wrong, wrong5 = sum_over_ranks(sums).tolist()
        closed, seen = sum_over_ranks(gates).tolist()
        without_answer = sum_over_ranks(overflowing).nonzero().flatten().tolist()
        return Evaluation(
            images=images,
            loss=loss / (images - len(without_answer)) if len(without_answer) < images else math.nan,
            error=100 * wrong / images,
            error_top5=100 * wrong5 / images,
            pruned_share=closed / seen if self.has_gates else None,
            skipped=left_out,
            overflowing=tuple(without_answer),
        )

    def _forward(self, x: Tensor) -> Tensor:
        if self.device.type != "cuda" or self._is_observed():
            return self._logits(x)
        if self.captured is None:
            self.captured = CapturedCall(self._logits, (x,), changes=[self.gates])
        result: Tensor = self.captured(x) if self.captured.fits((x,)) else self._logits(x)
        return result

    def _is_observed(self) -> bool:
        """Whether somebody else observes the gates: a replayed graph would not call them."""
        return any(layer.gate.observer is not None for _, layer in dynamic_layers(self.model))

    def _logits(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=self.memory_format)
        with (
            counting_gates(self.model, self.gates),
            torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32),
        ):
            logits: Tensor = self.model(x)
        return logits.float()


def images_at_once(device: torch.device | str) -> int:
    """Many fill a GPU. On a CPU large tensors leave its caches, and their memory is taken anew for each."""
    return 1000 if torch.device(device).type == "cuda" else 64


def _check_split(split: object) -> None:
    if isinstance(split, Data):
        raise UserError("expected one split of a data set, got all of it: give data.test, or data.train")
    if not hasattr(split, "batches"):
        raise UserError(f"expected a split of a data set, as load_data('digits').test, got a {type(split).__name__}")


def evaluate(
    model: nn.Module, split: Split, batch_size: int | None = None, device: torch.device | str = "cpu"
) -> Evaluation:
    """One evaluation; see :class:`Evaluator`. Images that overflow are told in a warning."""
    evaluation = Evaluator(model, device)(split, batch_size)
    if evaluation.overflow and rank() == 0:
        log.warning("%s", evaluation.overflow)
    return evaluation
