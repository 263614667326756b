"""The native library with AddressSanitizer and UBSan in it, and every value of a network in memory of its own."""

import subprocess
from pathlib import Path

from tests import native_build

FLAGS = [
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    native_build.EMULATED_TILES,  # so that AddressSanitizer sees what tiles read
]


def environment() -> dict[str, str]:
    """What a process needs that loads the library, which is built if it was not: Python itself has no sanitizers."""
    built()
    return {
        "LD_PRELOAD": " ".join(_runtime(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }


def use() -> None:
    """Lets this process load the library in place of the one that is installed."""
    from dgconv.ops import native
    from tests.fuzz import apart

    native.library_path = lambda: str(built())
    apart.use()


def built() -> Path:
    return native_build.built("sanitized", FLAGS)


def _runtime(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())
