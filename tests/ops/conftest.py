"""Triton's interpreter, mended and made faster, for kernels that are tested without a GPU."""

from dataclasses import replace

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


@pytest.fixture(autouse=True)
def _faster_interpreter(monkeypatch):
    """Without work whose results Triton's interpreter throws away, which is more than half of its time.

    It looks for overflows of integers and then, its option ``debug`` being off, does not report them; and with every
    call of a function by a kernel it looks through the whole language for what the kernel's launch replaced already.
    """
    if torch.cuda.is_available():
        return
    tl = pytest.importorskip("triton.language")
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
    patch, first_builtin = interpreter._patch_builtin, {}

    def patch_once(package, builder, scope):
        if package not in first_builtin:
            names = (name for name in dir(package) if tl.core.is_builtin(getattr(package, name, None)))
            first_builtin[package] = next(names, None)
        name = first_builtin[package]
        if name and tl.core.is_builtin(getattr(package, name)):  # else all of them are replaced
            patch(package, builder, scope)

    monkeypatch.setattr(interpreter, "_patch_builtin", patch_once)
