"""Layers with nn.Conv2d's signature, and the tools that put them into any network and make them static again.

``torch.fx`` follows every layer but torch's own into its code, and some of these branch on what they are given. Tell it
that they are leaves::

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m, name):
            return m.__module__.startswith("dgconv.layers") or super().is_leaf_module(m, name)

    traced = torch.fx.GraphModule(model, Tracer().trace(model))
"""

from .boosting_suppression import FeatureBoostingConv2d
from .channel_gating import ChannelGatingConv2d
from .controller import Controller, Controllers
from .dynamic_group_conv import DynamicGroupConv2d
from .fully_learnable_group_conv import FullyLearnableGroupConv2d
from .gate import GlobalGate, HeadGate, keep_count
from .learned_group_conv import LearnedGroupConv2d
from .low_cost_collaboration import LowCostCollaborativeConv2d
from .method import Method, MethodLayer, import_all, register_method
from .saliency import SaliencyGenerator, passing_overflow
from .standard_group_conv import StandardGroupConv2d
from .static import halve_classifier, to_static_

import_all(__name__, __path__)  # a method is registered by its file

__all__ = [
    "DynamicGroupConv2d",
    "StandardGroupConv2d",
    "LearnedGroupConv2d",
    "FullyLearnableGroupConv2d",
    "FeatureBoostingConv2d",
    "ChannelGatingConv2d",
    "LowCostCollaborativeConv2d",
    "Method",
    "MethodLayer",
    "register_method",
    "Controller",
    "Controllers",
    "to_static_",
    "halve_classifier",
    "SaliencyGenerator",
    "passing_overflow",
    "HeadGate",
    "GlobalGate",
    "keep_count",
]
