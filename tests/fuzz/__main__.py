"""``python -m tests.fuzz --target prepared --inputs 100000``: inputs that no honest program wrote, tried one by one.

A target is a module in ``tests/fuzz/targets`` with

* ``make(rng) -> input``: an input from a ``random.Random``, always the same one from the same numbers;
* ``run(input) -> str``: tries it and returns one of ``outcome.GOOD``. A ``UserError`` counts as refused, ``Wrong`` as
  wrong, any other exception as a finding, and so does a process that dies, hangs or takes too much memory;
* ``store(input) -> bytes`` and ``restore(bytes) -> input``: for the corpus.

Findings are kept as files in ``--keep``; ``--record`` adds a line about the run to ``tests/fuzz/record.json``.
"""

import argparse
import sys
from pathlib import Path

from tests.fuzz import driver


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--target", required=True, choices=driver.targets())
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sanitized", action="store_true", help="with AddressSanitizer and UBSan in the native code")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where findings go")
    parser.add_argument("--record", action="store_true", help="add what was done to tests/fuzz/record.json")
    parser.add_argument("--replay", type=Path, nargs="*", help="try these files, or the corpus if none is named")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        files = arguments.replay or driver.corpus(arguments.target)
        findings = driver.replay(arguments.target, files, sanitized=arguments.sanitized)
        print(f"{len(files)} files, {len(findings)} findings", *findings, sep="\n")
        return bool(findings)
    result = driver.fuzz(
        arguments.target,
        arguments.inputs,
        seconds=arguments.seconds,
        seed=arguments.seed,
        workers=arguments.workers,
        sanitized=arguments.sanitized,
        keep=arguments.keep,
        show=print,
    )
    print(result)
    if arguments.record:
        driver.record(result)
    return bool(result.findings)


if __name__ == "__main__":
    sys.exit(main())
