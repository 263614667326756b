"""What rate a method needs on a model, for the same MACs as its rivals."""

from typing import Any

from ..errors import UserError
from ..models import create_model
from .methods import attach_pruning


def rate_for_budget(
    model_name: str, method: str, budget: float, input_size: tuple[int, int, int] | None = None, **options: Any
) -> float:
    """The pruning rate at which the cut network has ``budget`` of the dense one's MACs, at most 5 % off.

    ``options`` are those of ``create_model``. Network slimming takes its channels from the whole network, so its rate
    is not known before it is trained; it takes a budget itself.
    """
    if method == "ns":
        raise UserError("the rate of network slimming depends on what it learns; give it the budget instead of a rate")
    return attach_pruning(create_model(model_name, **options), method, budget=budget, input_size=input_size).rate
