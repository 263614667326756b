"""Buffers that count or name channels: what a state dict has for them is checked before it is put into a layer."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class CountingBuffers(nn.Module):
    """A module some of whose buffers are whole numbers in a range; ``load_state_dict`` refuses others.

    A count or an index out of range is read by kernels as an address, or keeps other channels than anybody said.
    """

    def ranges(self) -> dict[str, tuple[int, int]]:
        """The least and the largest number that a buffer may hold, by its name."""
        raise NotImplementedError

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        errors: list[str] = args[-1]
        for name, (least, most) in self.ranges().items():
            if problem := _problem(state_dict.get(prefix + name), least, most):
                errors.append(f"{prefix}{name} {problem}")
                return
        super()._load_from_state_dict(state_dict, prefix, *args)


def _problem(value: Any, least: int, most: int) -> str | None:
    """What is wrong with a tensor; nothing, where it has no numbers, as on the meta device or in a compiler."""
    if type(value) not in (Tensor, nn.Parameter) or value.is_meta or not value.numel():
        return None
    if value.is_floating_point() or value.is_complex():
        return f"must hold whole numbers, got {value.dtype}"
    low, high = int(value.min()), int(value.max())
    if least <= low and high <= most:
        return None
    return f"must be from {least} to {most}, got {low if low < least else high}"
