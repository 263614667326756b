"""One process that tries inputs. It may die of any of them: what it is at stands in memory that the driver shares."""

import base64
import importlib
import json
import mmap
import os
import random
import resource
import struct
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dgconv.errors import UserError
from tests.fuzz.outcome import GOOD, Wrong

STATUS = struct.Struct("<q")  # the number of the input, or one of these; then how often each outcome was seen
PREPARING, DONE = -2, -1  # before the first input, and while one is made; after the last
COUNTS = struct.Struct(f"<{len(GOOD)}q")
SIZE = STATUS.size + COUNTS.size
MOST_LINES = 60  # of a traceback


def rng_of(seed: int, number: int) -> random.Random:
    return random.Random(f"{seed}/{number}")


def main(job: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if job["sanitized"]:
        from tests.fuzz import sanitized

        sanitized.use()
    target = importlib.import_module(f"tests.fuzz.targets.{job['target']}")
    if "store" in job:
        for number in job["store"]:
            print(base64.b64encode(target.store(target.make(rng_of(job["seed"], number)))).decode())
        return
    with Path(job["status"]).open("r+b") as file:
        status = mmap.mmap(file.fileno(), SIZE)
    if not job["sanitized"]:
        _limit_memory(job["most_memory"])
    counts = dict.fromkeys(GOOD, 0)
    files = job.get("files")
    driver = os.getppid()
    for number in range(job["first"], job["end"], job["stride"]):
        if os.getppid() != driver:
            return  # nobody would hear of what is found
        STATUS.pack_into(status, 0, PREPARING)
        given = target.restore(Path(files[number]).read_bytes()) if files else target.make(rng_of(job["seed"], number))
        STATUS.pack_into(status, 0, number)
        outcome, message = attempt(target, given, job["most_memory"])
        if outcome in GOOD:
            counts[outcome] += 1
            COUNTS.pack_into(status, STATUS.size, *counts.values())
        else:
            print(json.dumps({"number": number, "kind": outcome, "message": message}), flush=True)
    STATUS.pack_into(status, 0, DONE)


def attempt(target: ModuleType, given: Any, most_memory: int) -> tuple[str, str]:
    """The outcome, one of ``GOOD`` or of ``BAD``, and what is to be said of it."""
    before = _forget_peak()
    try:
        outcome = target.run(given)
        assert outcome in GOOD, outcome
    except UserError as refused:
        outcome, message = "refused", str(refused)
    except Wrong as problem:
        return "wrong", str(problem)
    except BaseException as problem:
        kind = "memory" if isinstance(problem, MemoryError) or "memory" in str(problem)[:200] else "raw"
        return kind, "".join(traceback.format_exception(problem)[-MOST_LINES:])
    else:
        message = ""
    if (taken := _peak() - before) > most_memory:
        return "memory", f"it took {taken >> 20} MiB, and was {outcome}"
    return outcome, message


def _forget_peak() -> int:
    """Bytes of memory that the process has; where the system can, what it had before counts no more: to import all that
    it needs, it may have had more than now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """Bytes of memory that the process had at most."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _limit_memory(most: int) -> None:
    """Beyond a little more than an input may take, the system refuses: a machine that swaps tells nobody anything."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (now + 2 * most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
