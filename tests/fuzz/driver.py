"""Starts workers, watches them, keeps what they died of."""

import atexit
import base64
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dgconv.environment import describe_environment
from tests.fuzz import sanitized as sanitizers
from tests.fuzz.outcome import BAD, GOOD
from tests.fuzz.worker import COUNTS, DONE, PREPARING, STATUS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = HERE / "record.json"
MOST_SECONDS = 10.0  # for one input, see _Clock
MOST_MEMORY = 1 << 30  # bytes that one input may take beside what the process has anyway
SANITIZED_IS_SLOWER = 12
START_SECONDS = 120.0  # for a worker to import all it needs, or to make an input
LOOK_EVERY = 0.1
MOST_ERRORS, MOST_ERROR_BLOCKS = 6000, 20_000  # bytes that are kept, and blocks of 512 on disk
SHOW_EVERY = 30.0


@dataclass(frozen=True)
class Finding:
    kind: str  # one of outcome.BAD
    name: str  # of the input: its number, or its file
    message: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.message.strip()}"


@dataclass
class Result:
    target: str
    build: str
    seed: int
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GOOD, 0))
    findings: list[Finding] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        return sum(self.counts.values()) + len(self.findings)

    @property
    def bad(self) -> dict[str, int]:
        return {kind: sum(finding.kind == kind for finding in self.findings) for kind in BAD}

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in (self.counts | self.bad).items())
        return f"{self.target} ({self.build}): {self.inputs:,} inputs in {self.seconds:.0f} s: {counts}"


def targets() -> list[str]:
    return sorted(path.stem for path in (HERE / "targets").glob("*.py") if path.stem[0] != "_")


def corpus(target: str) -> list[Path]:
    """Everything that was ever a finding."""
    return sorted((HERE / "corpus" / target).glob("*"))


def fuzz(
    target: str,
    inputs: int,
    *,
    seconds: float = float("inf"),
    seed: int = 0,
    workers: int = 2,
    sanitized: bool = False,
    keep: Path | None = None,
    show: Callable[[str], Any] = lambda line: None,
) -> Result:
    """Tries so many inputs, numbered from 0, or as many as there is time for."""
    result = Result(target, "sanitized" if sanitized else "stock", seed)
    job = _job(target, sanitized) | {"seed": seed, "end": inputs, "stride": workers}
    _watch([_Worker(job | {"first": first}) for first in range(workers)], result, seconds, show)
    if result.findings and keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        numbers = [int(finding.name) for finding in result.findings]
        stored = _python({**job, "store": numbers}, stdout=subprocess.PIPE).communicate()[0].splitlines()
        for finding, content in zip(result.findings, stored, strict=True):
            place = keep / f"{target}-{finding.kind}-{seed}-{finding.name}"
            place.write_bytes(base64.b64decode(content))
            place.with_name(f"{place.name}.txt").write_text(finding.message)
        show(f"kept {len(numbers)} in {keep}")
    return result


def replay(target: str, files: Iterable[Path], *, sanitized: bool = False) -> list[Finding]:
    """Tries stored inputs; a finding carries the name of its file."""
    names = [str(path) for path in files]
    result = Result(target, "replay", 0)
    job = _job(target, sanitized) | {"seed": 0, "end": len(names), "stride": 1, "files": names}
    _watch([_Worker(job | {"first": 0})], result, float("inf"), lambda line: None)
    assert result.inputs == len(names)
    return [Finding(one.kind, Path(names[int(one.name)]).name, one.message) for one in result.findings]


def record(result: Result) -> None:
    """Adds a run to the record."""
    runs = json.loads(RECORD.read_text()) if RECORD.exists() else []
    runs.append(
        {
            "target": result.target,
            "build": result.build,
            "seed": result.seed,
            "inputs": result.inputs,
            "seconds": round(result.seconds),
            **{name: count for name, count in result.counts.items() if count},
            **result.bad,
            **describe_environment("cpu"),
        }
    )
    RECORD.write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")


def _job(target: str, sanitized: bool) -> dict[str, Any]:
    return {"target": target, "sanitized": sanitized, "most_memory": MOST_MEMORY}


def _python(job: dict[str, Any], **options: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"TMPDIR": _scratch()} | (sanitizers.environment() if job["sanitized"] else {})
    command = [sys.executable, "-m", "tests.fuzz.worker", json.dumps(job)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, **options)


@cache
def _scratch() -> str:
    """Where workers write their files: in memory where that can be. What dead ones left goes with this process."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _Clock:
    """How long a process has been at one thing: what it computed and what it slept.

    A process that is ready and does not get the processor, or is stopped, hangs as little as the machine is busy.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._at: int | None = None
        self._slept = self._computed = 0.0

    def seconds(self, at: int) -> float:
        """To be asked every LOOK_EVERY seconds, with the number of what it is at."""
        state, computed = self._look()
        if at != self._at:
            self._at, self._slept, self._computed = at, 0.0, computed
        elif state == "S":
            self._slept += LOOK_EVERY
        return self._slept + computed - self._computed

    def _look(self) -> tuple[str, float]:
        try:
            fields = Path(f"/proc/{self._process}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # no such system: as if it slept
            return "S", 0.0
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Worker:
    """A process, started again behind the input that ended it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.limit = MOST_SECONDS * (SANITIZED_IS_SLOWER if job["sanitized"] else 1)
        self.counts = dict.fromkeys(GOOD, 0)
        self.findings: list[Finding] = []
        self._before = dict(self.counts)  # of processes that are gone
        self._start(job["first"])

    def _start(self, first: int) -> None:
        self.is_done = first >= self.job["end"]
        if self.is_done:
            return
        descriptor, self._status = tempfile.mkstemp()
        with os.fdopen(descriptor, "wb") as file:
            file.write(STATUS.pack(PREPARING) + bytes(COUNTS.size))
        job = self.job | {"first": first, "status": self._status}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  until the process is gone
        self._process = _python(job, stdout=subprocess.PIPE, stderr=self._errors)
        self._clock = _Clock(self._process.pid)
        self._lines: queue.Queue[bytes] = queue.Queue()
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=lambda out: [*map(self._lines.put, out)], args=[self._process.stdout])
        self._reader.start()

    def look(self) -> None:
        """Takes down what the process did; starts another where it died or hangs."""
        if self.is_done:
            return
        has_ended = self._process.poll() is not None
        data = Path(self._status).read_bytes()
        (number,) = STATUS.unpack_from(data)
        self.counts = {
            name: self._before[name] + count
            for name, count in zip(GOOD, COUNTS.unpack_from(data, STATUS.size), strict=True)
        }
        if os.fstat(self._errors.fileno()).st_blocks > MOST_ERROR_BLOCKS:  # some libraries have much to say
            self._errors.truncate(0)
        if has_ended:
            self._end()
            self.is_done = number < 0
            if number == PREPARING or (number == DONE and self._process.returncode):
                raise RuntimeError(f"a worker did not start, or made no input: {self._stderr()}")
            if number >= 0:
                self._go_on_after(number, "crash", f"exit status {self._process.returncode}\n{self._stderr()}")
        elif self._clock.seconds(number) > (self.limit if number >= 0 else START_SECONDS):
            self.stop()
            if number < 0:
                raise RuntimeError(f"a worker did not start, or not end: {self._stderr()}")
            self._go_on_after(number, "hang", f"over {self.limit:g} s")

    def stop(self) -> None:
        if not self.is_done:
            self._process.kill()
            self._process.wait()
            self._end()

    def _end(self) -> None:
        self._reader.join()
        self._process.stdout.close()  # type: ignore[union-attr]
        while not self._lines.empty():
            found = json.loads(self._lines.get())
            self.findings.append(Finding(found["kind"], str(found["number"]), found["message"]))
        Path(self._status).unlink()

    def _go_on_after(self, number: int, kind: str, message: str) -> None:
        self.findings.append(Finding(kind, str(number), message))
        self._before = dict(self.counts)
        self._errors.close()
        self._start(number + self.job["stride"])

    def _stderr(self) -> str:
        self._errors.seek(max(0, self._errors.seek(0, 2) - MOST_ERRORS))
        return self._errors.read().decode(errors="replace")


def _watch(workers: list[_Worker], result: Result, seconds: float, show: Callable[[str], Any]) -> None:
    begin = shown = time.time()
    try:
        while not all(worker.is_done for worker in workers) and time.time() - begin < seconds:
            time.sleep(LOOK_EVERY)
            for worker in workers:
                worker.look()
            if time.time() - shown > SHOW_EVERY:
                shown = time.time()
                _sum_up(workers, result, shown - begin)
                show(str(result))
    finally:
        for worker in workers:
            worker.stop()
    _sum_up(workers, result, time.time() - begin)


def _sum_up(workers: list[_Worker], result: Result, seconds: float) -> None:
    result.seconds = seconds
    result.counts = {name: sum(worker.counts[name] for worker in workers) for name in GOOD}
    result.findings = [finding for worker in workers for finding in worker.findings]
