"""What a network costs: multiply-accumulate operations, layer by layer, by a named convention."""

from ..layers.method import Convention
from .macs import CONVENTIONS, LayerCost, MacCount, count_macs, count_macs_by_convention
from .rules import needs_images, register_rule

__all__ = [
    "count_macs",
    "count_macs_by_convention",
    "needs_images",
    "register_rule",
    "MacCount",
    "LayerCost",
    "Convention",
    "CONVENTIONS",
]
