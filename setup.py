"""Builds the native kernels beside the Python package; all else is in pyproject.toml.

They are an extra: where there is no C++ compiler, or it refuses, the install goes on and dgconv computes with torch.
"""

import os
import platform
import sys
import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

SOURCES = Path("src/dgconv/ops/csrc")
COMMON_FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fvisibility=hidden", "-Wall", "-g0"]
OPENMP = ["-fopenmp"]
# One unit per instruction set, all from the same headers; which one runs is decided when the library is loaded.
ISA_FLAGS = {
    "isa_avx512": "-mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma",
    "isa_avx2": "-mavx2 -mfma",
    "byte_avx512_amx": (
        "-mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma -mavx512vnni -mavx512vbmi -mavx512vbmi2"
        " -mamx-tile -mamx-int8"
    ),
    "byte_avx512_vbmi2": (
        "-mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma -mavx512vnni -mavx512vbmi -mavx512vbmi2"
    ),
    "byte_avx512_vnni": "-mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma -mavx512vnni",
    "byte_avx_vnni": "-mavx2 -mfma -mavxvnni",
    "byte_avx2": "-mavx2 -mfma",
    "sparse_bf16": "-mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma -mavx512bf16",
    "sparse_amx": (
        "-mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma -mavx512vbmi -mavx512vbmi2"
        " -mamx-tile -mamx-int8 -mamx-bf16 -mavx512bf16"
    ),
}
# Which not every compiler knows: without them, there is a set less.
NEW_FLAGS = {"-mamx-tile", "-mamx-int8", "-mamx-bf16", "-mavx512bf16"}
EMULATE_VARIABLE = "DGCONV_EMULATE_AMX"  # for tests where there is no AMX: plain code in its place
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


def fingerprint() -> str:
    """Of the sources: native.py compares it with the files it finds, so that stale code is never run."""
    check = 0
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".h", ".cpp"):
            check = zlib.crc32(path.read_bytes(), check)
    return f"{check:08x}"


class BuildNative(build_ext):
    def build_extension(self, ext: Extension) -> None:
        try:
            self.build_with(ext, OPENMP)
        except (CompileError, LinkError) as error:
            print(f"dgconv: no native kernels with OpenMP ({error}); trying without threads", file=sys.stderr)
            self.build_with(ext, [])

    def build_with(self, ext: Extension, threads: list[str]) -> None:
        objects: list[str] = []
        for source in ext.sources:
            name = Path(source).stem
            # Kernels for bytes give the same bits everywhere: no multiplication is joined with an addition.
            contraction = "off" if name.startswith("byte_") else "fast"
            flags = [*COMMON_FLAGS, f"-ffp-contract={contraction}", *threads]
            flags += ["-Wno-maybe-uninitialized"]  # which GCC finds in its own headers
            own = ISA_FLAGS.get(name, "").split() if IS_X86 else []
            known = [flag for flag in own if flag not in NEW_FLAGS]
            try:
                objects += self.compile_one(source, flags + own)
            except CompileError:
                if known == own:
                    raise
                objects += self.compile_one(source, flags + known)
        target = self.get_ext_fullpath(ext.name)
        self.compiler.link_shared_object(objects, target, extra_postargs=threads, target_lang="c++")

    def compile_one(self, source: str, flags: list[str]) -> list[str]:
        define = [("DGCONV_FINGERPRINT", f'"{fingerprint()}"')]
        define += [("DGCONV_EMULATES_TILES", "1")] if os.environ.get(EMULATE_VARIABLE) else []
        return self.compiler.compile([source], self.build_temp, define, extra_postargs=flags)


native = Extension(
    "dgconv.ops._native",
    sorted(str(path) for path in SOURCES.glob("*.cpp")),
    depends=sorted(str(path) for path in SOURCES.glob("*.h")),
    optional=True,
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildNative})
