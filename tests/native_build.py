"""The native library, built by g++ alone with flags of a test's own."""

import ast
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src/dgconv/ops/csrc"
FLAGS = [
    *("-std=c++17", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno"),
    *("-ffp-contract=fast", "-Wall", "-Wno-maybe-uninitialized"),
]
EMULATED_TILES = "-DDGCONV_EMULATES_TILES=1"  # AMX in plain code, where there is none
PLAIN_TILES = "-DDGCONV_EMULATES_TILES=2"  # and where there is no AVX-512


def built(name: str, flags: list[str]) -> Path:
    """The library for the sources as they are now, in a folder of this name."""
    from dgconv.ops.native import fingerprint

    folder = ROOT / "build" / name
    target = folder / f"native-{fingerprint()}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    define = f'-DDGCONV_FINGERPRINT="{fingerprint()}"'

    def compiled(source: Path) -> Path:
        made = folder / f"{source.stem}.o"
        own = ["-ffp-contract=off"] if "byte_" in source.stem else []
        if PLAIN_TILES in flags and source.stem == "byte_avx512_amx":
            own += ["-Wno-psabi"]
        else:
            own += _isa_flags().get(source.stem, "").split()
        subprocess.run(["g++", *FLAGS, *flags, *own, define, "-c", str(source), "-o", str(made)], check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sorted(SOURCES.glob("*.cpp"))))
    subprocess.run(["g++", *FLAGS, *flags, "-shared", *map(str, objects), "-o", str(target)], check=True)
    return target


def _isa_flags() -> dict[str, str]:
    """As setup.py has them."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ISA_FLAGS":
            return ast.literal_eval(node.value)
    raise AssertionError("setup.py has no ISA_FLAGS")
