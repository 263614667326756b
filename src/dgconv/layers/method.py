"""How a method that is more than a forward pass takes part in training, and what is left of it afterwards."""

from torch import Tensor, nn


class MethodLayer(nn.Module):
    """A convolution with ``nn.Conv2d``'s signature whose method acts during training too.

    The trainer calls every hook at its time; a layer overrides those it needs. What a hook changes must be a buffer or
    a parameter, changed in place, so that a checkpoint carries it and a captured CUDA graph sees it.
    """

    normalizes = False
    """True: it holds the batch norm that would follow it, and the backbone leaves its own out."""

    undecayed: tuple[str, ...] = ()
    """Names of parameters that weight decay leaves alone."""

    def move_to(self, progress: float) -> None:
        """Before each step, ``progress`` going from 0 to 1."""

    def penalty(self) -> Tensor | None:
        """What the layer adds to the loss of this step, already weighted."""
        return None

    def end_epoch(self, progress: float) -> None:
        """After the last step of an epoch, before the evaluation."""

    def to_static(self) -> nn.Module:
        """Plain layers that compute what this one computes in eval mode; itself, if that depends on the image."""
        return self
