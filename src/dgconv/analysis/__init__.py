"""Looking at a network: what it costs, and what its gates do."""

from ..cost.macs import LayerCost, MacCount, count_macs

__all__ = ["count_macs", "MacCount", "LayerCost"]
