"""Which device a command runs on."""


def find_device(wanted: str = "auto") -> str:
    """The one asked for, if it is there; "auto" takes a GPU where there is one."""
    import torch

    from ..environment import refuse_missing_gpu

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    refuse_missing_gpu(wanted)
    return wanted
