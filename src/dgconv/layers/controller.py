"""What acts on a network while it trains, besides the optimizer: one protocol for gates, thresholds and rivals."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor


class Place(NamedTuple):
    """Where in a training a step is; all count from 0."""

    epoch: int
    step: int
    steps: int  # of an epoch


class Controller:
    """Something that acts during training: every hook does nothing until a subclass says what.

    A step is::

        controller.before_step(progress)
        logits = model(x)
        loss = criterion(logits, target)
        controller.see(x, target, logits)
        saliencies = take_saliencies(model)
        if (penalty := controller.penalty(saliencies)) is not None:
            loss = loss + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        controller.after_update()
        controller.after_step(saliencies, place)

    and an epoch ends with ``controller.before_step(progress)`` and ``controller.end_epoch(progress)``, before the
    evaluation. What ``penalty`` and ``after_update`` change must be a tensor, changed in place: a captured CUDA graph
    repeats them.
    """

    def before_step(self, progress: float) -> None:
        """Moves to where training is, ``progress`` going from 0 to 1. Touches the device only if something changes."""

    def see(self, images: Tensor, labels: Tensor, logits: Tensor) -> None:
        """Is shown what a step trains on and what the network makes of it; :meth:`penalty` comes next."""

    def penalty(self, saliencies: Sequence[Tensor] = ()) -> Tensor | None:
        """What is added to the loss of a step, already weighted; ``saliencies`` are those of its dynamic layers."""
        return None

    def after_update(self) -> None:
        """Follows the optimizer, within the step that a CUDA graph holds."""

    def after_step(self, saliencies: Sequence[Tensor], place: Place) -> None:
        """Follows the whole step, outside of the graph."""

    def end_epoch(self, progress: float) -> float | None:
        """Follows the last step of an epoch; a threshold or offset that is now in force is returned, to be told."""
        return None

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold besides the parameters and buffers of the network. Every rank takes part."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what :meth:`state` gave; every rank its share."""


class Controllers(Controller):
    """Several controllers as one, in their order; the state of each is told apart by its number."""

    def __init__(self, members: Sequence[Controller]) -> None:
        self.members = list(members)

    def before_step(self, progress: float) -> None:
        for member in self.members:
            member.before_step(progress)

    def see(self, images: Tensor, labels: Tensor, logits: Tensor) -> None:
        for member in self.members:
            member.see(images, labels, logits)

    def penalty(self, saliencies: Sequence[Tensor] = ()) -> Tensor | None:
        given = [penalty for member in self.members if (penalty := member.penalty(saliencies)) is not None]
        return sum(given[1:], given[0]) if given else None

    def after_update(self) -> None:
        for member in self.members:
            member.after_update()

    def after_step(self, saliencies: Sequence[Tensor], place: Place) -> None:
        for member in self.members:
            member.after_step(saliencies, place)

    def end_epoch(self, progress: float) -> float | None:
        told = [member.end_epoch(progress) for member in self.members]
        return next((value for value in reversed(told) if value is not None), None)

    def state(self) -> dict[str, Tensor]:
        states = {number: member.state() for number, member in enumerate(self.members)}
        return {f"{number}.{name}": value for number, state in states.items() for name, value in state.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for number, member in enumerate(self.members):
            prefix = f"{number}."
            member.load_state({key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)})
