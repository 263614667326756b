"""Triton's interpreter, mended, for kernels that are tested without a GPU."""

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _mended_interpreter(monkeypatch):
    """What Triton 3.6's interpreter gets wrong.

    It asks int() of an array of one element, which numpy 2.4 refuses (triton issue 9171), and multiplies matrices of
    bfloat16 as if their bits were integers.
    """
    if torch.cuda.is_available():
        return
    tl = pytest.importorskip("triton.language")
    from triton.runtime import interpreter

    patch, dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patch_and_mend(tensor, scope):
        patch(tensor, scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    def widen(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def dot_of_floats(self, a, b, *args):
        return dot(self, widen(a), widen(b), *args)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_and_mend)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_of_floats)
