"""Generative adversarial learning (GAL), Lin et al. 2019: soft masks learned against a teacher and a discriminator."""

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers.method import Method, register_method
from ..values import FACTOR
from ._tap import Tap
from .base import SMALLER, Choice, FilterPruning, best_of, units_left

TEACHER_FROM = 1 / 3  # progress of training at which the network becomes its own teacher


class AdversarialPruning(FilterPruning):
    r"""Learns a mask m for every channel, so small that a discriminator can just not tell its logits from a teacher's.

    .. math:: \min_{W, m \ge 0} \max_D \; L + \mu \lVert z_T - z \rVert^2 + \nu \big( \log D(z_T) + \log(1 - D(z)) \big)
              + \lambda \lVert m \rVert_1

    z are the logits, z_T those of the teacher: the network as it was after a third of the training. m is moved as in
    FISTA: the gradient and momentum step is the optimizer's, the proximal step, which takes lambda off and stops at
    zero, follows. The discriminator sees logits through a layer that turns gradients round, so that one backward pass
    trains both sides. At two thirds the channels of least m in the whole network go, and what is left of m goes into
    the weights.

    The authors have no labels in this loss and stop where m is zero; here the loss of training stays, and the rate, or
    the budget, says how many go. From trained weights (``init_from``) the first third goes on with them.

    Args:
        model, rate, budget, input_size: see :class:`FilterPruning`.
        mask_shrinkage: lambda, what the proximal step of each update takes off a mask.
        imitation_weight: weight mu of the distance from the teacher's logits.
        adversarial_weight: weight nu of the discriminator's loss.
    """

    final_from = 2 / 3

    def __init__(
        self,
        model: nn.Module,
        *amount: Any,
        mask_shrinkage: float = 1e-3,
        imitation_weight: float = 1.0,
        adversarial_weight: float = 0.1,
        **named_amount: Any,
    ) -> None:
        GAL.check(
            mask_shrinkage=mask_shrinkage, imitation_weight=imitation_weight, adversarial_weight=adversarial_weight
        )
        super().__init__(model, *amount, **named_amount)
        self.mask_shrinkage = mask_shrinkage
        self.imitation_weight, self.adversarial_weight = imitation_weight, adversarial_weight
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        self.undecayed = tuple(f"mask{number}" for number in range(len(self.sets)))
        for name, channel_set in zip(self.undecayed, self.sets, strict=True):
            self.register_parameter(name, nn.Parameter(torch.ones(channel_set.units)))
        classes = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)]
        self.discriminator = nn.Sequential(nn.Linear(classes[-1] if classes else 2, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("strength", torch.zeros(()))  # 1 while masks are learned; a captured graph reads it there
        self._is_taught: bool | None = None
        self.register_load_state_dict_post_hook(_look_again)
        self.masked: dict[str, list[tuple[str, Tensor]]] = {}  # by layer: of its masks the names and channels
        for name, channel_set in zip(self.undecayed, self.sets, strict=True):
            for member in channel_set.having("norm") or [channel_set.source]:
                self.masked.setdefault(member.layer, []).append((name, member.channels))
        self.seen: tuple[Tensor, Tensor] | None = None
        Tap.put_on(model, self, list(self.masked))

    def mask_of(self, layer: str, channels: int) -> Tensor:
        """What the channels of a layer are multiplied by, [C]."""
        whole = self.get_parameter(self.undecayed[0]).new_ones(channels)
        for name, places in self.masked[layer]:
            mask = self.get_parameter(name)
            whole = whole.index_copy(
                0, places.flatten().to(mask.device), mask.repeat_interleave(places.shape[1]).to(whole)
            )
        return whole

    def tapped(self, name: str, out: Any, is_training: bool) -> Any:
        if isinstance(out, tuple):  # of a batch norm with its ReLU, which gives its input, too
            return self.tapped(name, out[0], is_training), out[1], None
        return out * self.mask_of(name, out.shape[1])[:, None, None].to(out.dtype)

    # -- learning ------------------------------------------------------------------------------------------------

    @property
    def is_taught(self) -> bool:
        if self._is_taught is None:
            self._is_taught = bool(self.get_buffer("strength") > 0)
        return self._is_taught

    def before_step(self, model: nn.Module, progress: float) -> None:
        if progress >= TEACHER_FROM and not self.is_taught and not self.is_final:
            own = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("pruning.")}
            self.teacher.load_state_dict(own)
            self.get_buffer("strength").fill_(1)
            self._is_taught = True
        super().before_step(model, progress)

    def see(self, model: nn.Module, images: Tensor, labels: Tensor, logits: Tensor) -> None:
        self.seen = images, logits

    def penalty(self, model: nn.Module) -> Tensor | None:
        seen, self.seen = self.seen, None
        if seen is None or (not self.is_taught and not seen[0].is_cuda):
            return None
        images, logits = seen
        with torch.no_grad():
            taught = self.teacher.eval()(images).float()
        real, fake = self.discriminator(taught)[:, 0], self.discriminator(_Reversed.apply(logits.float()))[:, 0]
        told_apart = F.softplus(-real).mean() + F.softplus(fake).mean()
        imitated = F.mse_loss(logits.float(), taught)
        weighted = self.imitation_weight * imitated + self.adversarial_weight * told_apart
        return self.get_buffer("strength") * weighted

    @torch.no_grad()
    def after_update(self, model: nn.Module) -> None:
        super().after_update(model)
        for name in self.undecayed:  # the proximal step
            mask = self.get_parameter(name)
            shrunk = (mask - self.mask_shrinkage).clamp(min=0)
            mask.copy_(torch.where(self.get_buffer("strength") > 0, shrunk, 1.0))

    # -- pruning -------------------------------------------------------------------------------------------------

    def choose(self, model: nn.Module, rate: float) -> Choice:
        """One threshold for all masks; a set keeps one unit at least."""
        scores = [self.get_parameter(name).detach().cpu() for name in self.undecayed]
        together = torch.cat(scores)
        kept = best_of(together, units_left(len(together), rate)).split([len(score) for score in scores])
        return [keep if keep.any() else best_of(score, 1) for keep, score in zip(kept, scores, strict=True)]

    @torch.no_grad()
    def prune(self, model: nn.Module) -> None:
        if self.budget is not None:
            self.rate = self._rate_for_budget(model, self.choose, math.inf)  # how many of a layer depends on which
        learned = {layer: self.mask_of(layer, len(model.get_parameter(f"{layer}.weight"))) for layer in self.masked}
        super().prune(model)
        for layer, mask in learned.items():
            module = model.get_submodule(layer)
            for values in (module.weight, module.bias):
                if isinstance(values, Tensor):
                    values.mul_(mask.view(-1, *[1] * (values.dim() - 1)))
        for name in self.undecayed:
            self.get_parameter(name).fill_(1)
        self.get_buffer("strength").zero_()
        self._is_taught = False

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"seen": None}


class _Reversed(torch.autograd.Function):
    """Itself on the way forth, and the opposite gradient on the way back."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return -grad


def _look_again(module: nn.Module, keys: object) -> None:
    assert isinstance(module, AdversarialPruning)
    module._is_taught = None


GAL = register_method(
    Method(
        "gal",
        "GAL",
        AdversarialPruning,
        {"mask_shrinkage": FACTOR, "imitation_weight": FACTOR, "adversarial_weight": FACTOR},
        SMALLER,
        prunes=True,
    )
)
