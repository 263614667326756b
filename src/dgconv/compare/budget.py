"""The options with which a method costs a given share of the dense network's MACs (``paper`` convention)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..bench.settle import settle_
from ..cost import count_macs
from ..errors import UserError
from ..layers.method import Method
from ..models import create_model
from ..pruning import attach_pruning
from ..values import SHARE
from .methods import Rival, find_rival

TOLERANCE = 0.05  # of the dense network's MACs: what is further off is said to be
HALVINGS = 10


def options_for_budget(
    method: str,
    backbone: str,
    budget: float,
    input_size: tuple[int, int, int] | None = None,
    **backbone_options: Any,
) -> dict[str, Any]:
    """Settings of a :class:`~dgconv.train.Recipe` with which a method costs ``budget`` of what the dense network does.

    Whole numbers (groups) come as near as they can. A budget below the least a method can cost is a ``UserError``.

    Args:
        backbone_options: of ``create_model``, as ``width``.
    """
    SHARE.check("budget", budget)
    rival = find_rival(method)
    record = rival.method
    if record is None:
        return {}
    if record.prunes:
        model = create_model(backbone, **backbone_options)
        attach_pruning(model, method, budget=budget, input_size=input_size)  # says so if it cannot be reached
        return {"prune": method, "prune_budget": budget}
    fixed = record.in_comparisons(budget)
    option, value = _knob_at(
        record,
        budget,
        lambda options: _share(rival, backbone, fixed | options, input_size, **backbone_options),
        backbone,
    )
    held = {"mac_budget": budget} if record.cost_is_trained else {}
    return {**fixed, option: value, **held, **record.at_equal_macs}


def _knob_at(
    method: Method, budget: float, share: Callable[[dict[str, Any]], float], backbone: str
) -> tuple[str, float]:
    """The value of its knob with which a method comes nearest to the budget."""
    if method.knob is None:
        raise UserError(f"the record of {method.name} names no option that sets its cost; leave the method out")
    option, cheapest, dearest = method.knob
    value: float
    if method.choices[option].kind is int:
        shares = _shares_of_numbers(lambda number: share({option: number}), budget, int(dearest), int(cheapest))
        value, least = min(shares, key=lambda number: abs(shares[number] - budget)), min(shares.values())
    else:
        least = share({option: cheapest})
        value = _fraction(lambda number: share({option: number}), budget, cheapest, dearest)
    if least > budget + TOLERANCE:
        raise UserError(
            f"{method.name} cannot bring {backbone} to {budget:g} of its MACs: the nearest it gets is {least:.3g}. "
            "Choose a larger `budget`, or leave the method out"
        )
    return option, value


def expected_share(
    method: str,
    backbone: str,
    options: dict[str, Any],
    input_size: tuple[int, int, int] | None = None,
    **backbone_options: Any,
) -> float:
    """The share of the dense network's MACs, as far as it is known before training; see :func:`options_for_budget`."""
    for held_to in ("prune_budget", "mac_budget"):
        if held_to in options:
            return float(options[held_to])
    return _share(find_rival(method), backbone, options, input_size, **backbone_options)


def _share(
    rival: Rival,
    backbone: str,
    options: dict[str, Any],
    input_size: tuple[int, int, int] | None,
    **backbone_options: Any,
) -> float:
    """Counted; guessed from random images where how many inputs are zero depends on the layer before."""
    known = rival.method.options if rival.method else {}
    options = {key: value for key, value in options.items() if key in known}
    with _same_random_numbers():
        model = create_model(rival.model_name(backbone), **options, **backbone_options)
        dense = create_model(backbone, **backbone_options)
        size = input_size or dense.input_size
        images = None
        if rival.method and rival.method.cost_needs_zeros:
            settle_(model, size)
            images = torch.randn(2, *size)
        return count_macs(model, size, images=images).macs / count_macs(dense, size).macs


def _shares_of_numbers(share: Callable[[int], float], budget: float, dearest: int, cheapest: int) -> dict[int, float]:
    """Shares of whole numbers, from the dearest on until they fall below the budget; numbers that do not fit the
    network are passed over."""
    shares: dict[int, float] = {}
    for number in range(dearest, cheapest + 1):
        try:
            shares[number] = share(number)
        except UserError:
            if number == cheapest and not shares:
                raise
            continue
        if shares[number] < budget:
            break  # larger ones only cost less
    return shares


def _fraction(share: Callable[[float], float], budget: float, cheapest: float, dearest: float) -> float:
    """Finds a fraction by halving the interval; rounded, because it is read by people."""
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
