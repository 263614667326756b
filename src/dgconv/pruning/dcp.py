"""Discrimination-aware channel pruning (DCP), Zhuang et al. 2018: losses amid a network tell what channels are for."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers.method import Method, register_method
from ..values import FACTOR, whole
from ._layer_by_layer import LayerByLayer, Pass, by_input, groups_of, readers_of, units_to_inputs, watching
from ._tap import Tap
from .base import SMALLER, best_of
from .channels import ChannelSet, Member

ROUNDS = 4  # in which a layer's channels are chosen
STEPS = 2  # of gradient descent after each
STEP_SIZE = 0.05  # of the length of the weights; a step that does not help is taken back, and the next one shorter
MOST_EXAMPLES = 64  # every gradient takes a run of the network


class DiscriminationAwarePruning(LayerByLayer):
    r"""Adds classifiers amid the network, and then to each layer the input channels with the largest gradient.

    .. math:: A \leftarrow A \cup \arg\max_{k \notin A} \lVert \partial (L_M + \lambda L_S) / \partial W_k \rVert_F

    Training is with the losses of these classifiers (batch norm, ReLU, average pooling, a linear layer) beside its own,
    so that features tell classes apart early on. Half way, layer after layer, all its input channels are taken away
    and given back greedily: those by which the joint loss would fall most steeply. L_M is the mean squared distance of
    the layer's outputs from those of the whole network, L_S the loss of the next classifier behind it. After
    each round the weights that are back are re-fitted to the joint loss.

    The authors start from a trained network (``init_from``), choose channels one by one on 10,000 images, and
    fine-tune after each part of the network; here channels come back in four rounds, on a few images.

    Args:
        model, rate, budget, input_size: see :class:`FilterPruning`.
        aux_losses: how many classifiers there are amid the network, at even distances.
        discrimination_weight: weight lambda of the classifier's loss when channels are chosen.
    """

    final_from = 1 / 2

    def __init__(
        self,
        model: nn.Module,
        *amount: Any,
        aux_losses: int = 2,
        discrimination_weight: float = 1.0,
        **named_amount: Any,
    ) -> None:
        DCP.check(aux_losses=aux_losses, discrimination_weight=discrimination_weight)
        super().__init__(model, *amount, **named_amount)
        self.discrimination_weight = discrimination_weight
        readers = [member.layer for one in self.sets for member in readers_of(one)[:1]]
        self.places = [
            name for name in dict.fromkeys(readers) if isinstance(model.get_submodule(name), nn.Conv2d)
        ]  # where a classifier could be
        count = min(aux_losses, len(self.places))
        self.tapped_places = [self.places[len(self.places) * number // (count + 1)] for number in range(1, count + 1)]
        classes = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)]
        self.classifiers = nn.ModuleList(
            _classifier(model.get_submodule(name), classes[-1] if classes else 2) for name in self.tapped_places
        )
        self.features: dict[str, Tensor] = {}
        self.labels: Tensor | None = None
        self.register_buffer("training_with", torch.ones(()))  # a captured graph reads it there
        Tap.put_on(model, self, self.tapped_places)

    def tapped(self, name: str, out: Any, is_training: bool) -> Any:
        if is_training:
            self.features[name] = out
        return None

    def see(self, model: nn.Module, images: Tensor, labels: Tensor, logits: Tensor) -> None:
        self.labels = labels

    def penalty(self, model: nn.Module) -> Tensor | None:
        """The losses of the classifiers."""
        (features, labels), self.features, self.labels = (self.features, self.labels), {}, None
        if labels is None or len(features) < len(self.tapped_places):
            return None
        losses = [
            F.cross_entropy(classifier(features[name]).float(), labels)
            for name, classifier in zip(self.tapped_places, self.classifiers, strict=True)
        ]
        return self.get_buffer("training_with") * torch.stack(losses).sum() if losses else None

    def prune(self, model: nn.Module) -> None:
        super().prune(model)
        self.get_buffer("training_with").zero_()

    @torch.enable_grad()
    def choose_of(
        self, model: nn.Module, whole: nn.Module, channel_set: ChannelSet, keep: int, images: Tensor, labels: Tensor
    ) -> Tensor:
        images, labels = images[:MOST_EXAMPLES], labels[:MOST_EXAMPLES]
        members = readers_of(channel_set)
        names = [member.layer for member in members]
        with torch.no_grad(), watching(whole, names) as before:
            whole(images)
        wanted = {name: seen.outputs for name, seen in before.items()}
        kept = torch.zeros(channel_set.units, dtype=torch.bool)
        joint = _JointLoss(self, model, members, wanted, images, labels)
        joint.measure(kept)
        while (count := int(kept.sum())) < keep:
            scores = torch.zeros(channel_set.units)
            for member, gradient in zip(members, joint.gradients, strict=True):
                squares = by_input(gradient, groups_of(member.of(model))).square().sum((1, 2)).cpu()  # [C]
                scores += squares[member.channels].sum(1)
            kept = best_of(scores.masked_fill(kept, math.inf), min(keep, count + math.ceil(keep / ROUNDS)))
            joint.measure(kept)
            joint.fit(kept)
        return kept

    def loss_behind(self, layer: str, seen: dict[str, Pass], logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of the first classifier that sees what a layer makes, if only the network's own."""
        place = self.next_classifier(layer)
        if place:
            logits = self.classifiers[self.tapped_places.index(place)](seen[place].outputs)
        return self.discrimination_weight * F.cross_entropy(logits, labels)

    def next_classifier(self, layer: str) -> str | None:
        behind = self.places[self.places.index(layer) :] if layer in self.places else []
        return next((place for place in behind if place in self.tapped_places), None)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"features": {}, "labels": None}


class _JointLoss:
    """How far the readers of a set are from what they are to make, and from telling classes apart; as a function of
    their weights, which are tried out in the network itself."""

    value: Tensor
    gradients: tuple[Tensor, ...]

    def __init__(
        self,
        pruning: DiscriminationAwarePruning,
        model: nn.Module,
        members: list[Member],
        wanted: dict[str, Tensor],
        images: Tensor,
        labels: Tensor,
    ) -> None:
        self.pruning, self.model, self.members, self.wanted = pruning, model, members, wanted
        self.images, self.labels = images, labels
        self.weights = [member.of(model).weight.detach().clone() for member in members]
        place = pruning.next_classifier(members[0].layer)
        self.watched = [*wanted, *([place] if place else [])]

    def measure(self, kept: Tensor) -> None:
        """The loss and its gradient by all weights of the readers, while those of units that are not kept are zero."""
        self._put(kept)
        with watching(self.model, self.watched) as seen:
            logits = self.model(self.images)
        loss = self.pruning.loss_behind(self.members[0].layer, seen, logits, self.labels)
        for name, target in self.wanted.items():
            loss = loss + F.mse_loss(seen[name].outputs, target)
        self.gradients = torch.autograd.grad(loss, [member.of(self.model).weight for member in self.members])
        self.value = loss.detach()

    def fit(self, kept: Tensor) -> None:
        """A few steps of gradient descent for the weights of the kept units."""
        size = STEP_SIZE
        for _ in range(STEPS):
            before = self.weights, self.value, self.gradients
            self.weights = [
                weight - size * weight.norm() / gradient.norm().clamp(min=1e-30) * gradient
                for weight, gradient in zip(self.weights, self.gradients, strict=True)
            ]
            self.measure(kept)
            if not self.value < before[1]:
                self.weights, self.value, self.gradients = before
                size /= 4
        self._put(kept)

    @torch.no_grad()
    def _put(self, kept: Tensor) -> None:
        """The weights of the kept units into the readers, and zeros for the others."""
        for member, weight in zip(self.members, self.weights, strict=True):
            reader = member.of(self.model)
            groups = groups_of(reader)
            there = units_to_inputs(member, kept, weight.shape[1] * groups).to(weight.device)
            by_group = there.view(groups, 1, -1, *[1] * (weight.dim() - 2))
            reader.weight.copy_((weight.unflatten(0, (groups, -1)) * by_group).flatten(0, 1))


def _classifier(conv: nn.Module, classes: int) -> nn.Module:
    assert isinstance(conv, nn.Conv2d)
    channels = conv.out_channels
    return nn.Sequential(
        nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


DCP = register_method(
    Method(
        "dcp",
        "DCP",
        DiscriminationAwarePruning,
        {"aux_losses": whole(0, 100), "discrimination_weight": FACTOR},
        SMALLER,
        prunes=True,
    )
)
