"""The options with which a method costs a given share of the dense network's MACs (``paper`` convention)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..analysis.macs import count_macs
from ..deploy.settle import settle_
from ..errors import UserError, unknown_name
from ..models import create_model
from ..pruning import attach_pruning
from ..pruning.base import check_budget
from ..train.recipe import MODEL_OPTIONS
from .methods import RIVALS

TOLERANCE = 0.05  # of the dense network's MACs: what is further off is said to be
HALVINGS = 10
MOST_GROUPS = 64

# Of each method the option that sets its cost, and the values it may have from the cheapest to the dearest.
FRACTIONS = {
    "fbs": ("density", 0.01, 1.0),
    "dgc": ("pruning_rate", 0.999, 0.0),
    "dgcg": ("pruning_rate", 0.999, 0.0),
    "cgnet": ("target", 4.0, -4.0),
    "lccn": ("open_share", 0.001, 0.999),
}
WHOLE_NUMBERS = {"sgc": "groups", "lgc": "condensation", "flgc": "groups"}
# What else the recipe of a method says. Where the cost comes out of training, a controller keeps it at the budget:
# dgconv.train.mac_budget for CGNet and LCCN, which starts open; for DGC-G the global threshold, as a share of MACs.
# DGC's generators shrink in a few epochs as in the paper's many.
DGC = {"saliency_start": "ones", "generator_shrinkage": 6.0}
FIXED: dict[str, dict[str, Any]] = {
    "lccn": {"open_share": 0.9},
    "dgc": DGC,
    "dgcg": {**DGC, "threshold_share": "macs", "threshold_every": 1},
}
CONTROLLED = ("cgnet", "lccn")


def options_for_budget(
    method: str,
    backbone: str,
    budget: float,
    input_size: tuple[int, int, int] | None = None,
    **backbone_options: Any,
) -> dict[str, Any]:
    """Fields of a :class:`~dgconv.train.Recipe` with which a method costs ``budget`` of what the dense network does.

    Whole numbers (groups) come as near as they can. A budget below the least a method can cost is a ``UserError``.

    Args:
        backbone_options: of ``create_model``, as ``width``.
    """
    check_budget(budget)
    if method not in RIVALS:
        raise unknown_name("method", method, RIVALS)
    if method == "dense":
        return {}
    if RIVALS[method].prunes:
        model = create_model(backbone, **backbone_options)
        attach_pruning(model, method, budget=budget, input_size=input_size)  # says so if it cannot be reached
        return {"prune": method, "prune_budget": budget}

    def share(option: str, value: float) -> float:
        return expected_share(method, backbone, {**fixed, option: value}, input_size, **backbone_options)

    fixed: dict[str, Any] = {"base_share": min(0.25, budget / 2)} if method == "cgnet" else {}
    value: float
    if method in WHOLE_NUMBERS:
        option = WHOLE_NUMBERS[method]
        shares = _shares_of_numbers(lambda value: share(option, value), budget)
        value, least = min(shares, key=lambda number: abs(shares[number] - budget)), min(shares.values())
    else:
        option, cheapest, dearest = FRACTIONS[method]
        least = share(option, cheapest)
        value = _fraction(lambda value: share(option, value), budget, cheapest, dearest)
    if least > budget + TOLERANCE:
        raise UserError(
            f"{method} cannot bring {backbone} to {budget:g} of its MACs: the nearest it gets is {least:.3g}. "
            "Choose a larger budget, or leave the method out"
        )
    controlled = {"mac_budget": budget} if method in CONTROLLED else {}
    return {**fixed, option: value, **controlled, **FIXED.get(method, {})}


def expected_share(
    method: str,
    backbone: str,
    options: dict[str, Any],
    input_size: tuple[int, int, int] | None = None,
    **backbone_options: Any,
) -> float:
    """Of the dense network's MACs, as far as it is known before training; FBS's is guessed from random images."""
    for held_to in ("prune_budget", "mac_budget"):
        if held_to in options:
            return float(options[held_to])
    options = {key: value for key, value in options.items() if key in MODEL_OPTIONS}
    with _same_random_numbers():
        model = create_model(RIVALS[method].model_name(backbone), **options, **backbone_options)
        dense = create_model(backbone, **backbone_options)
        size = input_size or dense.input_size
        images = None
        if method == "fbs":  # how many inputs are zero depends on the layer before; for the others their options tell
            settle_(model, size)
            images = torch.randn(2, *size)
        return count_macs(model, size, images=images).macs / count_macs(dense, size).macs


def _shares_of_numbers(share: Callable[[int], float], budget: float) -> dict[int, float]:
    """From 1 on until they fall below the budget; numbers that do not fit the network are passed over."""
    shares: dict[int, float] = {}
    for number in range(1, MOST_GROUPS + 1):
        try:
            shares[number] = share(number)
        except UserError:
            if number == MOST_GROUPS and not shares:
                raise
            continue
        if shares[number] < budget:
            break  # larger ones only cost less
    return shares


def _fraction(share: Callable[[float], float], budget: float, cheapest: float, dearest: float) -> float:
    """By halving the interval; rounded, because it is read by people."""
    for _ in range(HALVINGS):
        middle = (cheapest + dearest) / 2
        cheapest, dearest = (cheapest, middle) if share(middle) > budget else (middle, dearest)
    nearest = min(cheapest, dearest, key=lambda value: abs(share(value) - budget))
    return round(nearest, 4)


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
