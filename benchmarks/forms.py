"""The forms of a training step that are compared: a name, and a function that builds ``step()``.

To add one, add a line to a table below: a function of (backbone, batch size, device) that returns a callable which
trains one step and returns the loss. Warming up is the builder's work; what is measured is everything from its call of
``forget_warm_up`` on.
"""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from authors_form import AuthorsFormConv2d, take_lasso
from masked_copies import MaskedCopiesConv2d
from torch import Tensor, nn

from dgconv import DynamicGroupConv2d, create_model
from dgconv.ops.overlap import overlapping
from dgconv.train import lasso_loss, take_saliencies
from dgconv.train.beginning import memory_format_of

AUTHORS = "authors"  # what all others are compared with
WARM_UP = 3
LAYER_OPTIONS = {  # with which the paper's numbers come out, as in dgconv.models
    "resnet18": {"pruning_rate": 0.55},
    "mobilenetv2": {"pruning_rate": 0.55, "squeeze": 4},
}

Step = Callable[[], Tensor]
Builder = Callable[..., Step]  # of a backbone, a batch size, a device, and what else a TrainingStep takes


@dataclass
class TrainingStep:
    """Forward, cross-entropy and lasso, backward, SGD with Nesterov momentum, zero_grad. Returns the loss.

    ``fused`` is the optimizer that a CUDA graph needs: one kernel, the learning rate in a tensor on the device, so that
    a schedule reaches a graph that was captured before.
    """

    layer: type[nn.Module]
    backbone: str
    batch_size: int
    device: str
    bf16: bool = False
    fused: bool = False
    pruning_rate: float | None = None  # otherwise than the paper has it for the backbone
    side: int | None = None  # of the images

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        options = dict(LAYER_OPTIONS.get(self.backbone, {"pruning_rate": 0.75}))
        if self.pruning_rate is not None:
            options["pruning_rate"] = self.pruning_rate
        conv_layer = self.layer if self.layer is nn.Conv2d else partial(self.layer, **options)
        self.model = create_model(self.backbone, conv_layer=conv_layer).to(self.device)
        as_trained = self.fused or (self.device == "cpu" and self.layer in (DynamicGroupConv2d, nn.Conv2d))
        dtype = torch.bfloat16 if self.bf16 else torch.float32
        layout = torch.contiguous_format
        if as_trained:
            layout = memory_format_of(self.model, torch.device(self.device), dtype)
        self.model.to(memory_format=layout)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=torch.tensor(0.01, device=self.device) if self.fused else 0.01,
            momentum=0.9,
            weight_decay=1e-4,
            nesterov=True,
            fused=True if self.fused else None,  # None: as torch chooses for everybody
        )
        channels, *sides = self.model.input_size
        sides = [self.side] * 2 if self.side else sides
        self.x = torch.randn(self.batch_size, channels, *sides, device=self.device).contiguous(memory_format=layout)
        self.target = torch.randint(self.model.num_classes, (self.batch_size,), device=self.device)

    def __call__(self) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            loss = F.cross_entropy(self.model(self.x), self.target) + 1e-5 * self._take_lasso()
        with overlapping(self.x.device) if self.fused else nullcontext():  # as dgconv train does it
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def _take_lasso(self) -> Tensor:
        """Taken, not read: no layer keeps this step's graph alive for the next, or for a capture."""
        if self.layer is AuthorsFormConv2d:
            return take_lasso(self.model)
        if self.layer is nn.Conv2d:
            return torch.zeros(())
        return lasso_loss(take_saliencies(self.model))


def eager(layer: type[nn.Module], backbone: str, batch_size: int, device: str, **options: Any) -> Step:
    """Plain PyTorch in float32, at torch's defaults: on a GPU convolutions may use TF32, matrix products do not."""
    step = TrainingStep(layer, backbone, batch_size, device, **options)
    for _ in range(WARM_UP if device == "cuda" else 1):
        step()
    forget_warm_up(device)
    return step


def cuda_graph(
    layer: type[nn.Module],
    backbone: str,
    batch_size: int,
    device: str,
    *,
    tf32: bool = False,
    bf16: bool = False,
    **options: Any,
) -> Step:
    """The whole step as one CUDA graph. Each replay first copies a batch to where the graph reads it, as a user must.

    Args:
        tf32: for matrix products too.
        bf16: autocast; what stays in float32 follows ``tf32``.
    """
    if tf32:
        torch.set_float32_matmul_precision("high")
    step = TrainingStep(layer, backbone, batch_size, device, bf16=bf16, fused=True, **options)
    batch = step.x.clone(), step.target.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    forget_warm_up(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):  # the same stream, for cuBLAS keeps a workspace for each it meets
        loss = step()  # gradients are None here, so they get their place in the graph's own memory

    def replay() -> Tensor:
        step.x.copy_(batch[0])
        step.target.copy_(batch[1])
        graph.replay()
        return loss

    return replay


def forget_warm_up(device: str) -> None:
    """Peaks of memory count from here, without what cuDNN tried out or the allocator kept for later."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


ANY_DEVICE: dict[str, Builder] = {
    AUTHORS: partial(eager, AuthorsFormConv2d),
    "masked copies": partial(eager, MaskedCopiesConv2d),
    "ours": partial(eager, DynamicGroupConv2d),
    "ours bf16": partial(eager, DynamicGroupConv2d, bf16=True),
    "dense": partial(eager, nn.Conv2d),
    "dense bf16": partial(eager, nn.Conv2d, bf16=True),
}
GPU_ONLY: dict[str, Builder] = {
    "ours graph": partial(cuda_graph, DynamicGroupConv2d),
    "ours graph tf32": partial(cuda_graph, DynamicGroupConv2d, tf32=True),
    "ours graph bf16": partial(cuda_graph, DynamicGroupConv2d, tf32=True, bf16=True),
}
FORMS = ANY_DEVICE | GPU_ONLY
