"""How the kernels multiply float32: as torch's own convolutions do."""

import torch


def of_products() -> str:
    """TF32 if ``torch.backends.cudnn.allow_tf32``, which is torch's default; else thrice, as exact as float32."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
