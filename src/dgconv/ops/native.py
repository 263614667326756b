"""The native CPU kernels: finds the library, checks it and says which instruction set it uses.

The library is plain C++ behind a C interface (``csrc/``), built on installation where a compiler is found. It is an
extra: without it everything computes with torch.
"""

import ctypes
import importlib.util
import logging
import os
import zlib
from functools import cache
from pathlib import Path

import torch  # noqa: F401  first: the library then shares torch's OpenMP threads instead of starting its own

from ..errors import UserError
from . import structs

# Best first, as in csrc/api.cpp.
ISAS = ("avx512_amx", "avx512_vbmi2", "avx512_vnni", "avx512", "avx_vnni", "avx2", "portable")
FLOAT_ISAS = ("avx512", "avx2", "portable")  # those that differ in their kernels for floats
ISA_VARIABLE = "DGCONV_ISA"

log = logging.getLogger(__name__)


def available() -> bool:
    """Whether the native kernels can be used here."""
    return why_not() is None


def why_not() -> str | None:
    """Why the native kernels are not in use, and what to do; None where they are."""
    found = _find()
    return found if isinstance(found, str) else None


def isa() -> str:
    """The instruction set in use, one of ``ISAS``; "none" without the native kernels."""
    return library().dgconv_isa().decode() if available() else "none"


def library() -> ctypes.CDLL:
    """The kernels; a ``UserError`` where they cannot be used."""
    found = _find()
    if isinstance(found, str):
        raise UserError(found)
    return found


@cache
def _find() -> ctypes.CDLL | str:
    """The kernels, loaded once; or why not, which is also told once."""
    try:
        found = _load()
    except (ImportError, OSError) as problem:
        reason = f"the native kernels are not in use: {problem}"
        log.warning("%s", reason)
        return reason
    _select(found, os.environ.get(ISA_VARIABLE, ""))
    return found


def library_path() -> str:
    """Where the library is."""
    spec = importlib.util.find_spec(f"{__package__}._native")
    if spec is None or spec.origin is None:
        raise ImportError("they were not built; install again with a C++ compiler at hand (g++ or clang++)")
    return spec.origin


def _load() -> ctypes.CDLL:
    found = ctypes.CDLL(library_path())
    found.dgconv_native_version.restype = found.dgconv_isa.restype = ctypes.c_char_p
    built_from, expected = found.dgconv_native_version().decode(), fingerprint()
    if expected is not None and built_from != expected:
        raise ImportError("they were built from other sources than those installed; run `pip install -e .` again")
    structs.declare(found)
    return found


def fingerprint() -> str | None:
    """A checksum of the sources beside this file, as setup.py computes it; None where only that was installed."""
    check, sources = 0, Path(__file__).parent / "csrc"
    if not sources.is_dir():
        return None
    for path in sorted(sources.iterdir()):
        if path.suffix in (".h", ".cpp"):
            check = zlib.crc32(path.read_bytes(), check)
    return f"{check:08x}"


def _select(found: ctypes.CDLL, name: str) -> None:
    if name not in ("", *ISAS):
        raise UserError(f"{ISA_VARIABLE}={name!r} is unknown; use {', '.join(ISAS)}, or unset it for the best one")
    if not found.dgconv_select_isa(name.encode()):
        raise UserError(f"{ISA_VARIABLE}={name}: this CPU lacks it; unset {ISA_VARIABLE} to take the best it has")
