"""What a network returns: a tensor, or several in dicts, tuples and lists, as torch nests them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

ONE = "logits"


def tensors_of(result: Any) -> list[Tensor]:
    """Every tensor of a result, in order."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def names_of(result: Any) -> list[str]:
    """One for each of them: its place, ``out``, ``features.0`` or ``output_1``; ``logits`` if there is nothing else."""
    if isinstance(result, Tensor):
        return [ONE]
    leaves, _ = pytree.tree_flatten_with_path(result)
    places = [".".join(_key(key) for key in path) for path, leaf in leaves if isinstance(leaf, Tensor)]
    return [f"output_{place}" if place[:1].isdigit() else place for place in places]


def _key(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))


def difference(result: Any, expected: Any) -> float:
    """How far a result is from the one expected, relative to the largest value; of several tensors, the worst."""
    pairs = zip(tensors_of(result), tensors_of(expected), strict=True)
    return worst(_relative(tensor.double(), wanted.double()) for tensor, wanted in pairs)


def worst(differences: Iterable[float]) -> float:
    """The largest; NaN if one is, which Python's ``max`` may pass over."""
    return float(torch.tensor(list(differences)).max())


def _relative(tensor: Tensor, wanted: Tensor) -> float:
    if torch.equal(tensor, wanted):
        return 0.0  # all zeros, too
    return float((tensor - wanted).abs().max() / wanted.abs().max())
