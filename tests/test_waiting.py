"""Threads of torch that wait for work give the processor away soon: decided before torch is loaded, or not at all."""

import os
import subprocess
import sys

import pytest

CODE = "import {first}; import os, dgconv; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "variables", "expected"),
    [
        ("sys", {}, "2000"),
        ("sys", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("sys", {"OMP_WAIT_POLICY": "active"}, "None"),
        ("torch", {}, "None"),
    ],
)
def test_decided_before_torch_is_loaded(first, variables, expected):
    environment = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(first=first)],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
