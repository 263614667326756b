"""What a network costs: multiply-accumulate operations, layer by layer, by a named convention."""

from ..layers.method import Convention
from .macs import CONVENTIONS, LayerCost, MacCount, count_macs, count_macs_by_convention, needs_images
from .rules import register_rule

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
