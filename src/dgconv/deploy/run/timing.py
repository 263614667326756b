"""Where the time of a prepared network goes, over several calls."""

from statistics import median

from torch import Tensor

from .prepared import PreparedModel


def median_split(prepared: PreparedModel, images: Tensor, repeats: int) -> dict[str, float]:
    """Seconds of the parts of a call, the median of so many."""
    prepared(images)
    splits = [prepared.time_split(images) for _ in range(repeats)]
    return {part: median(split.get(part, 0.0) for split in splits) for part in splits[0]}
