"""Networks of one convolution that take every path through tiles of AMX: how many tiles, vectors, steps and rows."""

from collections.abc import Iterator
from itertools import product
from random import Random

import torch
from torch import Tensor

from dgconv.deploy.graph import ByteConv, Bytes, Dequantize, GateSpec, Graph, Quantize

SIZES = ((1, 1), (3, 5), (4, 9), (7, 7), (1, 33), (5, 16), (9, 14), (14, 28))
INPUTS, OUTPUTS = (3, 16, 37, 64, 100, 130), (3, 16, 32, 50, 64, 112, 130)


def tile_networks() -> Iterator[tuple[Graph, Tensor]]:
    rng = Random("tiles")
    for (height, width), inputs in product(SIZES, INPUTS):
        outputs = rng.choice(OUTPUTS)
        kernel = rng.choice((1, 3, 3))
        stride, dilation = (rng.choice((1, 1, 2)), rng.choice((1, 1, 2))), (1, rng.choice((1, 1, 2)))
        padding = (kernel // 2, kernel // 2 * dilation[1])
        yield _network(rng, (inputs, height, width), outputs, kernel, stride, padding, dilation)


def _network(
    rng: Random,
    shape: tuple[int, int, int],
    outputs: int,
    kernel: int,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[Graph, Tensor]:
    generator = torch.Generator().manual_seed(rng.randrange(2**32))
    inputs, heads = shape[0], rng.choice((1, 2))

    def weight(inputs: int, kernel: int) -> Tensor:
        return torch.randint(-127, 128, (outputs * heads, inputs, kernel, kernel), generator=generator).to(torch.int8)

    def numbers(size: float) -> Tensor:
        return size * torch.randn(outputs * heads, generator=generator)

    gate = None
    if rng.random() < 0.6:
        bias = torch.rand(heads, inputs, generator=generator)
        weights = (torch.randn(heads, *rest, generator=generator) for rest in ((2, inputs), (inputs, 2)))
        keep = rng.choice((None, rng.randint(1, inputs), inputs))
        gate = GateSpec(*weights, bias, keep=keep, threshold=0.5 if keep is None else None)
    given, middle, last = Bytes(0.05, 3), Bytes(0.1, rng.choice((0, 255))), Bytes(0.1, 9)
    sizes = stride, padding, (0, 0), dilation
    pointwise = (1, 1), (0, 0), (0, 0), (1, 1)
    multipliers = [numbers(0.3 / size) for size in (inputs * kernel**2, outputs * heads)]
    steps = [
        Quantize("x", "a", given),
        ByteConv(
            *("a", "b", weight(inputs, kernel), multipliers[0], numbers(30), given, middle, *sizes),
            gate=gate,
            folded=gate is not None and rng.random() < 0.5,
        ),
        ByteConv(
            *("b", "c", weight(outputs * heads, 1), multipliers[1], numbers(30), middle, last, *pointwise),
            residual="b" if rng.random() < 0.5 else None,
            residual_scale=0.5,
        ),
        Dequantize("c", "y", last),
    ]
    x = 3 * torch.randn(rng.choice((1, 1, 2)), *shape, generator=generator)
    return Graph("x", "y", steps), x
