"""Layers with nn.Conv2d's signature, and the tool that puts them into any network."""

from .dynamic_group_conv import DynamicGroupConv2d
from .gate import GlobalGate, HeadGate, keep_count
from .saliency import SaliencyGenerator
from .standard_group_conv import StandardGroupConv2d

__all__ = [
    "DynamicGroupConv2d",
    "StandardGroupConv2d",
    "SaliencyGenerator",
    "HeadGate",
    "GlobalGate",
    "keep_count",
]
