"""All Triton kernels of a function compiled at once, on all cores, instead of one after another as it meets them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from .fused import has_triton


@contextmanager
def compiling_ahead(device: torch.device) -> Iterator[None]:
    """Inside, a kernel that is launched does not run: its compilation is begun. Leaving waits until all are done.

    So the function's results are garbage, and whatever it changes must be put back.
    """
    if not has_triton() or os.environ.get("TRITON_INTERPRET") == "1":
        yield
        return
    from triton.runtime import _async_compile
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def begin(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        token = _async_compile.active_mode.set(mode)  # here, because a backward pass has a thread of its own
        try:
            return launch(self, *args, grid=grid, warmup=True, **options)
        finally:
            _async_compile.active_mode.reset(token)

    with _Builders(device) as builders, _async_compile.AsyncCompileMode(builders) as mode:
        JITFunction.run = begin
        try:
            yield
        finally:
            JITFunction.run = launch


class _Builders(ThreadPoolExecutor):
    """Threads suffice: the compiler lets go of Python's lock in its passes, and the assembler is another process."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(os.cpu_count(), initializer=torch.cuda.synchronize, initargs=(device,))  # binds it to the GPU

    def submit(self, compile: Callable[[], Any], /, *_: Any, **__: Any) -> Future[Any]:
        return super().submit(self._build, compile)

    @staticmethod
    def _build(compile: Callable[[], Any]) -> Any:
        kernel = compile()
        kernel.run  # noqa: B018  loads it and builds its launcher, which calls a C compiler
        return kernel
