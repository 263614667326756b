"""What is left of a layer that no longer makes all channels of a sum: its result, spread among zeros."""

from torch import Tensor, nn

from ._state import CountingBuffers


class Spread(CountingBuffers):
    """The channels that a layer makes at their places among others, which are zero.

    Args:
        layer: a convolution or a batch norm.
        places: of its channels, in ascending order.
        channels: how many there are with the others.
    """

    places: Tensor

    def __init__(self, layer: nn.Module, places: Tensor, channels: int) -> None:
        super().__init__()
        self.layer, self.channels = layer, channels
        self.register_buffer("places", places)

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {"places": (0, self.channels - 1)}

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        shape = (*out.shape[:-3], self.channels, *out.shape[-2:])
        return out.new_zeros(shape).index_copy(-3, self.places, out)

    def extra_repr(self) -> str:
        return f"{len(self.places)} of {self.channels} channels"
