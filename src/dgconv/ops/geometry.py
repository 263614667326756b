"""Stride, padding and dilation: a number for both directions, or one for each."""

from ..errors import UserError

Pair = tuple[int, int]
Size2 = int | Pair


def pair(value: Size2) -> Pair:
    """A value for each of both directions. A tuple of one stands for both, as in torch."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def whole_pair(name: str, value: Size2, least: int) -> Pair:
    """An argument of a convolution, checked."""
    numbers = value if isinstance(value, tuple | list) else [value]
    if not 1 <= len(numbers) <= 2 or not all(isinstance(number, int) and number >= least for number in numbers):
        raise UserError(f"{name} must be a whole number of at least {least}, or two of them, got {value!r}")
    return pair(value)


def same_padding(size: Pair, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[Pair, Pair]:
    """Padding by TensorFlow's rule of "same", and what is more at the bottom and right.

    There are as many windows as strides begin within the image; what they reach beyond it is halved, and the larger
    half is at the end.
    """
    down, right = (
        max(0, (-(-extent // step) - 1) * step + spread * (count - 1) + 1 - extent)
        for extent, count, step, spread in zip(size, kernel, stride, dilation, strict=True)
    )
    return (down // 2, right // 2), (down % 2, right % 2)
