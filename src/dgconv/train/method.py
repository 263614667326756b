"""What a method does during training besides the forward pass: its layers' part, and that of filter pruning."""

from torch import Tensor, nn

from ..layers.method import MethodLayer
from ..pruning import pruning_of


class TrainingMethod:
    """All hooks of a network at once: of every :class:`MethodLayer`, and of its :class:`FilterPruning` if it has one.

    A step is::

        method.move_to(progress)
        loss = criterion(model(x), target)
        if (penalty := method.penalty()) is not None:
            loss = loss + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step()

    and an epoch ends with ``method.end_epoch(progress)``, before the evaluation.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.layers = [layer for layer in model.modules() if isinstance(layer, MethodLayer)]
        self.pruning = pruning_of(model)

    def move_to(self, progress: float) -> None:
        """Before each step, ``progress`` going from 0 to 1. Costs nothing on the device unless something changes."""
        for layer in self.layers:
            layer.move_to(progress)
        if self.pruning:
            self.pruning.move_to(self.model, progress)

    def penalty(self) -> Tensor | None:
        """What all add to the loss of this step; None if nothing."""
        penalties = [layer.penalty() for layer in self.layers]
        if self.pruning:
            penalties.append(self.pruning.penalty(self.model))
        given = [penalty for penalty in penalties if penalty is not None]
        return sum(given[1:], given[0]) if given else None

    def after_step(self) -> None:
        """After the optimizer, within the step that a CUDA graph holds."""
        if self.pruning:
            self.pruning.after_step(self.model)

    def end_epoch(self, progress: float) -> None:
        """After the last step of an epoch, before the evaluation."""
        for layer in self.layers:
            layer.end_epoch(progress)
        if self.pruning:
            self.pruning.end_epoch(self.model, progress)
