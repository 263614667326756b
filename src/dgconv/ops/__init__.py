"""Pure functions on tensors."""

from .dynamic_group_conv import dynamic_group_conv2d
from .reference import dynamic_group_conv2d_reference

__all__ = ["dynamic_group_conv2d", "dynamic_group_conv2d_reference"]
