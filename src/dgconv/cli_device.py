"""Which device a command runs on."""

from .errors import UserError


def find_device(wanted: str = "auto") -> str:
    """The one asked for, if it is there; "auto" takes a GPU where there is one."""
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"no GPU is to be seen by torch {torch.__version__}. Use --device cpu or auto, "
            "or see that the driver works ('nvidia-smi') and torch is a CUDA build"
        )
    return wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
