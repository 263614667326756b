"""Fixing choices that do not depend on the image: what is kept need not be found anew, and nothing else is scored.

A gate goes on to scale what it keeps by what the image asks for. Choices of trained networks often hardly change, and
of those trained with `freeze_choice` not at all.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError
from ..agreement import flipped, gated
from ..graph import ByteConv, Conv, GateSpec
from ..run.prepared import PreparedModel
from .calibrate import iterate


def freeze(
    prepared: PreparedModel,
    images: Any,
    *,
    overlap: float = 1.0,
    evaluate: Callable[[PreparedModel], float] | None = None,
) -> PreparedModel:
    """The network with fixed choices where they do not depend on the image; ``.report()`` tells what it cost.

    Args:
        prepared: a prepared network, in float32 or int8.
        images: like those that it will see: a tensor [N, C, height, width], or batches of them.
        overlap: how much of what a layer's heads keep must be the same for every image, in the mean over images; 1
            fixes only what is constant on all of them.
        evaluate: a function of a prepared network that returns its error in percent, to tell what it was before and is.
    """
    if not isinstance(prepared, PreparedModel):
        raise UserError(f"freeze takes a network that was prepared for the CPU, got {type(prepared).__name__}")
    if not 0 < overlap <= 1:
        raise UserError(f"`overlap` must be above 0 and up to 1, got {overlap}")
    x = _of_one_size(list(iterate(images, prepared.channels)))
    steps, found, fixed = list(prepared.graph.steps), 0, 0
    with torch.no_grad():
        for one in gated(prepared.graph):
            found += 1
            if one.gate.keep is None or one.gate.fixed is not None:
                continue
            saliency, kept = one.select(x)
            kept &= saliency > 0  # what is kept at 0 adds nothing
            usual = _usual(kept, one.gate.keep)
            if float((kept & usual).sum() / kept.sum().clamp_min(1)) < overlap:
                continue
            step = steps[one.index]
            assert isinstance(step, Conv | ByteConv)
            steps[one.index] = replace(step, gate=fixed_gate(one.gate, usual))
            fixed += 1
        if not fixed:
            return _noting(
                prepared, f"choices depend on the image in all of {found} dynamic convolutions" if found else ""
            )
        frozen = PreparedModel(replace(prepared.graph, steps=steps), prepared.inner, notes=prepared.notes)
        others = flipped(prepared, frozen, x)
    note = f"{fixed} of {found} dynamic convolutions keep the same channels of every image"
    note += "" if others is None else f"; {others:.2%} of {len(x)} images are answered otherwise"
    if evaluate is not None:
        note += f"; error {evaluate(prepared):.2f} % before, {evaluate(frozen):.2f} % now"
    return _noting(frozen, note)


def fixed_gate(gate: GateSpec, kept: Tensor) -> GateSpec:
    """The gate with one choice [H, C] for all images."""
    channels = kept.nonzero()[:, 1].view(len(kept), -1)
    rows = channels[..., None].expand(-1, -1, gate.weight2.shape[2])
    return replace(
        gate,
        weight2=gate.weight2.gather(1, rows).contiguous(),
        bias=gate.bias.gather(1, channels).contiguous(),
        fixed=channels.tolist(),
    )


def _usual(kept: Tensor, keep: int) -> Tensor:
    """The channels that each head keeps most often, [H, C], the first of equals."""
    counts = kept.sum(0)
    channels = counts.shape[1]
    order = counts * channels - torch.arange(channels)  # no two alike
    return torch.zeros_like(counts, dtype=torch.bool).scatter(1, order.topk(keep, 1).indices, True)


def _of_one_size(batches: list[Tensor]) -> Tensor:
    if not batches:
        raise UserError("there are no images to see choices on; give some that are like those the network will see")
    first = batches[0].shape[1:]
    return torch.cat([batch for batch in batches if batch.shape[1:] == first])


def _noting(model: PreparedModel, note: str) -> PreparedModel:
    return PreparedModel(model.graph, model.inner, notes=(*model.notes, note)) if note else model
