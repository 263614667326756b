"""Dynamic layers by number, from 1 on, as the paper counts them."""

from collections.abc import Sequence
from typing import TypeVar

from ...errors import UserError

T = TypeVar("T")
SHALLOW, DEEP = range(5, 9), range(33, 37)  # of the paper's maps
FOLLOWED = 33  # of its probabilities
MOST_BLOCKS = 4


def read_layers(texts: Sequence[str]) -> list[range]:
    """``["5-8", "33"]`` as ranges."""
    blocks = []
    for text in texts:
        first, is_range, last = text.partition("-")
        numbers = first, last if is_range else first
        if not all(number.isascii() and number.isdigit() and len(number) < 6 for number in numbers):
            raise UserError(f"`layers` are numbers and ranges of them, such as 5-8 33, got {text!r:.40}")
        block = range(int(numbers[0]), int(numbers[1]) + 1)
        if not block or block.start < 1:
            raise UserError(f"`layers` are counted from 1 on, and a range from its first to its last, got {text!r}")
        blocks.append(block)
    if len(blocks) > MOST_BLOCKS:
        raise UserError(f"`layers` takes {MOST_BLOCKS} numbers or ranges at most, got {len(blocks)}")
    return blocks


def of_block(layers: Sequence[T], block: range) -> list[T]:
    """The layers with these numbers."""
    if block.stop - 1 > len(layers):
        raise UserError(f"{titled(block)} of a network that has {len(layers)} dynamic layers; `layers` count from 1 on")
    return [layers[number - 1] for number in block]


def titled(block: range) -> str:
    return f"layer {block.start}" if len(block) == 1 else f"layers {block.start}–{block.stop - 1}"
