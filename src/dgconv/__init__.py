"""Dynamic group convolution: each image picks the channels it spends its budget on."""

from . import bench, deploy
from .cost import count_macs
from .layers import DynamicGroupConv2d, StandardGroupConv2d
from .layers.convert import DGCConfig, convert_
from .layers.select import dynamic_layers, set_pruning_rate
from .models import create_model, import_authors_checkpoint, list_models, load_model, save_model
from .ops import dynamic_group_conv2d
from .version import __version__

__all__ = [
    "__version__",
    "DynamicGroupConv2d",
    "StandardGroupConv2d",
    "dynamic_group_conv2d",
    "convert_",
    "DGCConfig",
    "set_pruning_rate",
    "dynamic_layers",
    "create_model",
    "list_models",
    "count_macs",
    "deploy",
    "bench",
    "save_model",
    "load_model",
    "import_authors_checkpoint",
]
