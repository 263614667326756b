"""When the gates of a dynamic convolution of bytes go into its weights: by what the two forms cost an image.

One form picks and scales the bytes that each head reads, pixel by pixel. That is dear where heads are narrow: they
read much for few outputs, and a vector of outputs is mostly empty. The other scales the weights, and computes a plain
convolution of all inputs. That is dear where heads are wide, and where weights are many and pixels few.

Costs are in products of four bytes with a vector of outputs, as ``benchmarks/folding.py`` found them with AVX-512 VNNI.
They are the same on every CPU, since the two forms round differently.
"""

from math import prod

from ..graph import Conv

LANES, QUAD = 16, 4  # outputs in a vector; inputs of a product
READ_PIXEL, READ_CHANNEL = 3.0, 0.22  # of a head that picks some of so many channels
WRITE = 7.5  # a vector of outputs
FOLD = 0.57  # a weight
MARGIN = 1.25


def pays(conv: Conv, pixels_read: int, pixels: int) -> bool:
    """Whether folding is clearly faster for planes of so many pixels."""
    return picking_cost(conv, pixels_read, pixels) > MARGIN * folding_cost(conv, pixels)


def picking_cost(conv: Conv, pixels_read: int, pixels: int) -> float:
    """At least: a threshold may keep nothing."""
    assert conv.gate is not None
    outputs, inputs, *kernel = conv.weight.shape
    heads, kept = len(conv.gate.bias), conv.gate.keep or 0
    read = min(pixels_read, pixels * prod(kernel)) * (READ_PIXEL + READ_CHANNEL * inputs)
    products = pixels * -(-outputs // heads // LANES) * (WRITE + prod(kernel) * -(-kept // QUAD))
    return heads * (read + products)


def folding_cost(conv: Conv, pixels: int) -> float:
    outputs, inputs, *kernel = conv.weight.shape
    products = pixels * -(-outputs // LANES) * (WRITE + prod(kernel) * -(-inputs // QUAD))
    return products + FOLD * conv.weight.numel()
