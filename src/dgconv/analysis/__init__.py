"""Looking at a network: what it costs, and what its gates do."""

from .macs import LayerCost, MacCount, count_macs

__all__ = ["count_macs", "MacCount", "LayerCost"]
