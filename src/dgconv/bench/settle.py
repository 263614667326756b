"""Ordinary numbers in a network that was never trained, so that it can be measured."""

import torch
from torch import nn

from ..layers.select import dynamic_layers


@torch.no_grad()
def settle_(model: nn.Module, input_size: tuple[int, int, int], batches: int = 2) -> None:
    """Change a fresh network so that its numbers stay ordinary for any random image, and leave it in eval mode.

    Every batch norm gets the statistics of random images. A dynamic layer multiplies its input by saliencies that grow
    with the input, so an unusual image still overflows some layers later: the saliencies are therefore drawn towards 1.
    Infinite or very small numbers would also take the processor another time than ordinary ones.
    """
    for _, layer in dynamic_layers(model):
        layer.generator.calm()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches, not one that moves
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(batches):
        model(torch.randn(8, *input_size, generator=generator))
    model.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for _, layer in dynamic_layers(model):
        layer.saliency = None
