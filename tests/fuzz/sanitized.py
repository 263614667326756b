"""The native library with AddressSanitizer and UBSan in it, and every value of a network in memory of its own."""

import ast
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src/dgconv/ops/csrc"
FOLDER = ROOT / "build/sanitized"
FLAGS = [
    *("-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-fPIC", "-fopenmp", "-fvisibility=hidden"),
    *("-fno-math-errno", "-ffp-contract=fast", "-Wall", "-Wno-maybe-uninitialized"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
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
    """The library for the sources as they are now."""
    from dgconv.ops.native import fingerprint

    target = FOLDER / f"native-{fingerprint()}.so"
    if target.exists():
        return target
    FOLDER.mkdir(parents=True, exist_ok=True)
    define = f'-DDGCONV_FINGERPRINT="{fingerprint()}"'

    def compiled(source: Path) -> Path:
        made = FOLDER / f"{source.stem}.o"
        own = [*_isa_flags().get(source.stem, "").split(), *(["-ffp-contract=off"] if "byte_" in source.stem else [])]
        command = ["g++", *FLAGS, *own, define, "-c", str(source), "-o", str(made)]
        subprocess.run(command, check=True)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sorted(SOURCES.glob("*.cpp"))))
    subprocess.run(["g++", *FLAGS, "-shared", *map(str, objects), "-o", str(target)], check=True)
    return target


def _isa_flags() -> dict[str, str]:
    """As setup.py has them."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ISA_FLAGS":
            return ast.literal_eval(node.value)
    raise AssertionError("setup.py has no ISA_FLAGS")


def _runtime(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())
