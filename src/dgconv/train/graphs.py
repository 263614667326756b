"""A function of fixed-size tensors as one CUDA graph: one launch in the place of thousands."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..ops.compile_ahead import compiling_ahead

WARM_UP = 3  # libraries choose their kernels and take their workspaces in the first calls


class CapturedCall:
    """Replays ``function(*inputs)`` with new contents in the same places.

    The warm-up before the capture really runs the function, so whatever it changes is handed in as ``changes``
    and put back afterwards. The result is overwritten by the next call.
    """

    def __init__(
        self, function: Callable[..., Any], inputs: tuple[Tensor, ...], changes: Iterable[Tensor] = ()
    ) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        changes = list(changes)
        kept = [tensor.detach().clone() for tensor in changes]  # a clone with a history would keep graphs alive
        random_state = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            with compiling_ahead(stream.device):
                function(*self.inputs)
            _put_back(changes, kept)
            for _ in range(WARM_UP):
                function(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        capturing = torch.cuda.Stream(priority=torch.cuda.current_stream().priority)  # its kernels keep the priority
        with torch.cuda.graph(self.graph, stream=capturing):
            self.result = function(*self.inputs)
        _put_back(changes, kept)
        torch.cuda.set_rng_state(random_state)

    def fits(self, inputs: tuple[Tensor, ...]) -> bool:
        return all(new.shape == place.shape for new, place in zip(inputs, self.inputs, strict=True))

    def __call__(self, *inputs: Tensor) -> Any:
        for place, new in zip(self.inputs, inputs, strict=True):
            place.copy_(new)
        self.graph.replay()
        return self.result


@torch.no_grad()
def _put_back(tensors: list[Tensor], contents: list[Tensor]) -> None:
    for tensor, content in zip(tensors, contents, strict=True):
        tensor.copy_(content)
