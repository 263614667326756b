"""Dynamic group convolution: each image picks the channels it spends its budget on."""

import os
import sys
from typing import TYPE_CHECKING, Any

# Threads of torch's that have nothing to do wait for milliseconds without giving the processor away: on a busy machine
# whoever has work to do waits for them. These times are a little longer than the pauses between two operations: some 50
# microseconds with GNU's OpenMP, a millisecond with LLVM's. They are read once, when torch is loaded.
if "torch" not in sys.modules and not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
    os.environ |= {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}

from . import bench, deploy
from .cost import count_macs
from .layers import DynamicGroupConv2d, StandardGroupConv2d
from .layers.convert import DGCConfig, convert_
from .layers.select import dynamic_layers, set_pruning_rate
from .models import create_model, import_authors_checkpoint, list_models, load_model, save_model
from .ops import dynamic_group_conv2d
from .version import __version__

if TYPE_CHECKING:
    from .tuning import plan, tune

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
    "tune",
    "plan",
]


def __getattr__(name: str) -> Any:
    """Tuning comes when it is asked for: it needs all that trains and reads data, and a layer does not."""
    if name not in ("plan", "tune"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import tuning

    return getattr(tuning, name)
