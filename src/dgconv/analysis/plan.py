"""What a training will take, told before it starts: cost, steps, memory and schedule. Needs no data set."""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cost.macs import CONVENTIONS, Convention, count_macs_by_convention
from ..data import DataFacts
from ..environment import one_thread
from ..layers.select import dynamic_layers
from ..models import ImageClassifier
from ..pruning import what_will_be_left
from ..train.mac_budget import MacBudget
from ..train.optimizer import make_optimizer
from ..train.recipe import Recipe
from ..train.recipe_files import Reported, reported_for
from ..train.schedule import WARM_UP_END
from ..train.tables import TrainingTable

TIMED_STEPS, TIMED_PIXELS = 2, 200_000  # of a training that is to be estimated; the pixels of all images of a step


@dataclass(frozen=True)
class NetworkCost:
    """Parameters, and MACs of one image by convention; ``dense_macs`` with plain, undivided convolutions."""

    parameters: int
    macs: dict[Convention, float]
    dense_macs: dict[Convention, float]

    def saving(self, convention: Convention) -> float:
        return self.dense_macs[convention] / self.macs[convention]


@dataclass(frozen=True)
class Agreement:
    """Our MACs (or saving over dense) beside the paper's; ``difference`` is in percent of its figure."""

    convention: Convention  # the one that comes closer
    ours: float
    reported: float
    difference: float


@dataclass(frozen=True)
class StepMemory:
    """Bytes a training step needs; see :func:`estimate_memory`."""

    state: int  # weights, gradients, momentum
    activations: int  # kept for the backward pass, for the whole batch

    @property
    def total(self) -> int:
        return self.state + self.activations


@dataclass(frozen=True)
class Stage:
    """A part of the three-stage schedule."""

    what: str
    epochs: float


@dataclass(frozen=True)
class TrainingPlan:
    """What is known of a training before it begins."""

    recipe: Recipe
    data: DataFacts
    cost: NetworkCost
    reported: Reported | None
    agreement: Agreement | None
    memory: StepMemory
    steps_per_epoch: int
    stages: list[Stage]

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.recipe.training.epochs

    def to_dict(self) -> dict[str, Any]:
        memory = asdict(self.memory) | {"total": self.memory.total}
        return asdict(self) | {"recipe": self.recipe.to_dict(), "memory": memory, "steps": self.steps}


@dataclass(frozen=True)
class StepTime:
    """Seconds, as measured: of a step, and from that of all of them. Steps are timed with few images, and scaled."""

    step: float
    total: float
    device: str
    images: int
    measured_steps: int


def time_step(plan: TrainingPlan, device: str = "cpu") -> StepTime:
    """Trains a few steps on random images, with a network that is thrown away."""
    training, side = plan.recipe.training, plan.data.side
    images = min(training.batch_size, max(2, TIMED_PIXELS // (side * side)))
    with torch.random.fork_rng(devices=[]):
        model = plan.recipe.build_model(plan.data.classes).to(device).train()
        x = torch.randn(images, 3, side, side, device=device)
    optimizer = make_optimizer(model, training, torch.device(device), plan.steps)
    labels = torch.zeros(images, dtype=torch.long, device=device)
    seconds = []
    for _ in range(1 + TIMED_STEPS):  # the first one finds its memory
        begin = time.perf_counter()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    step = statistics.median(seconds[1:]) * training.batch_size / images
    return StepTime(step, step * plan.steps, torch.device(device).type, images, TIMED_STEPS)


@one_thread()
def plan_training(recipe: Recipe) -> TrainingPlan:
    """Everything a dry run tells."""
    data, training = recipe.data.facts(), recipe.training
    model = recipe.build_model(data.classes)
    if training.mac_budget is not None:
        MacBudget(model, training.mac_budget).look_ahead((3, data.side, data.side))
    cost = count_cost(recipe, data, model)
    reported = reported_for(recipe)
    return TrainingPlan(
        recipe=recipe,
        data=data,
        cost=cost,
        reported=reported,
        agreement=agreement_with(cost, reported),
        memory=estimate_memory(model, training, data.side),
        steps_per_epoch=max(1, data.train_images // training.batch_size),
        stages=_stages(model, training.epochs, training.ramp_end),
    )


@one_thread()
def count_cost(recipe: Recipe, data: DataFacts, model: ImageClassifier | None = None) -> NetworkCost:
    """Parameters that are trained, and MACs of what will be left of them; those of the dense network included."""
    model = model or recipe.build_model(data.classes)
    size = (3, data.side, data.side)
    counts, used = count_macs_by_convention(model, size), what_will_be_left(model)
    left = counts if used is model else count_macs_by_convention(used, size)
    dense = {convention: count.dense_macs for convention, count in counts.items()}
    return NetworkCost(_parameters(model), {convention: count.macs for convention, count in left.items()}, dense)


def agreement_with(cost: NetworkCost, reported: Reported | None) -> Agreement | None:
    """Ours beside the reported MACs or saving, by the convention that comes closer; None where neither is printed."""
    if reported is None:
        return None
    if reported.macs is not None:
        figure, ours = reported.macs, cost.macs
    elif reported.saving is not None:
        figure, ours = reported.saving, {convention: cost.saving(convention) for convention in CONVENTIONS}
    else:
        return None
    closer = min(CONVENTIONS, key=lambda convention: abs(ours[convention] - figure))
    return Agreement(closer, ours[closer], figure, 100 * (ours[closer] / figure - 1))


def estimate_memory(model: nn.Module, training: TrainingTable, side: int) -> StepMemory:
    """An estimate, from what autograd keeps of a small batch on the CPU, scaled to the batch of the recipe.

    Two small batches, because part of it (weights cast to bfloat16) does not grow with the batch. Working memory of
    single operations and what a GPU's libraries hold for themselves come on top.
    """
    small, large = 2, 4
    kept = {
        count: _kept_bytes(model, torch.zeros(count, 3, side, side), training.precision) for count in (small, large)
    }
    an_image = (kept[large] - kept[small]) / (large - small)
    activations = kept[small] + an_image * (training.batch_size - small)
    copies = 3 if training.momentum else 2
    return StepMemory(state=4 * copies * _parameters(model), activations=max(0, round(activations)))


def _kept_bytes(model: nn.Module, x: Tensor, precision: str) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once, the model's own left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # keeps the storage, so that no other takes its address; the tensor would keep itself

    model.train()
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"),
    ):
        loss = F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long))
    total = sum(kept.values())
    del loss
    return total


def _stages(model: nn.Module, epochs: int, ramp_end: float) -> list[Stage]:
    """The stages of the schedule; none for a network without dynamic layers."""
    rates = [layer.pruning_rate for _, layer in dynamic_layers(model)]
    if not rates:
        return []
    rate = sum(rates) / len(rates)
    return [
        Stage("nothing is pruned", WARM_UP_END * epochs),
        Stage(f"the pruned share rises to {rate:.3g}", (ramp_end - WARM_UP_END) * epochs),
        Stage(f"{rate:.3g} stays pruned", (1 - ramp_end) * epochs),
    ]


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
