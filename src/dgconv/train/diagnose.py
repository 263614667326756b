"""Where a run went bad."""

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError


class Diverged(UserError):
    """The loss is no number any more."""


def first_bad_layer(model: nn.Module, x: Tensor, target: Tensor) -> str:
    """The first layer, in the order of the forward and then of the backward pass, that gives no finite number."""
    bad: list[str] = []
    handles = []
    for name, module in model.named_modules():
        if not list(module.children()):

            def look(module: nn.Module, args: tuple[Tensor, ...], out: object, name: str = name) -> None:
                if isinstance(out, Tensor) and not bool(out.isfinite().all()):
                    images = (~out.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
                    numbers = ", ".join(map(str, images[:8])) + (", ..." if len(images) > 8 else "")
                    bad.append(f"{name!r}, in {len(images)} of {len(out)} images of the batch (number {numbers})")

            handles.append(module.register_forward_hook(look))
    try:
        logits = model(x)
        if not bad:
            model.zero_grad(set_to_none=True)
            F.cross_entropy(logits.float(), target).backward()
            reversed_parameters = reversed(list(model.named_parameters()))
            bad += [repr(n) for n, p in reversed_parameters if p.grad is not None and not bool(p.grad.isfinite().all())]
    except UserError:  # a layer that refuses NaN; the one that gave it is in the list
        pass
    finally:
        for handle in handles:
            handle.remove()
    return bad[0] if bad else "none any more: it shows no longer"
