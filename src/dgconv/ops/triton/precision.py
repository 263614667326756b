"""How the kernels multiply float32: as torch's own convolutions do."""

import torch


def of_products() -> str:
    """TF32 where ``torch.backends.cudnn.allow_tf32`` says so, which is torch's default; else three of it, as float32."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
