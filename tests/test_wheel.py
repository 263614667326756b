"""The wheel by itself: installed elsewhere, without the checkout, it does what the package does."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import urllib.request
from pathlib import Path

import pytest
from filelock import FileLock

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory, worker_id):
    """A virtual environment that holds the wheel, made once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    place = (base if worker_id == "master" else base.parent) / "wheel"
    place.mkdir(exist_ok=True)
    with FileLock(place / ".lock"):
        if not (place / "venv").exists():
            install_wheel(place, place / "venv")
    return place / "venv"


def install_wheel(place: Path, environment: Path) -> None:
    """What the wheel depends on is found where the tests find it."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, ROOT],
        env=clean() | quick_compiler(place),
        check=True,
    )
    (wheel,) = place.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, wheel], check=True
    )
    # a path in a .pth file is searched, but its own .pth files, such as that of the checkout, are not read
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")


def quick_compiler(place: Path) -> dict[str, str]:
    """What has the kernels compiled in a third of the time, by leaving them slow."""
    if (found := shutil.which("c++")) is None:
        return {}
    compiler = place / "c++"
    compiler.write_text(f'#!/bin/sh\nexec {found} "$@" -O0\n')
    compiler.chmod(0o755)
    return {"CC": str(compiler), "CXX": str(compiler)}


@pytest.fixture
def dgconv(installed, tmp_path):
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(installed, *args), cwd=tmp_path, env=clean(), capture_output=True, text=True)

    return run


def command(environment: Path, *args: str) -> list[str]:
    return [str(environment / "bin/python"), "-m", "dgconv", *args]


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DGCONV_WEIGHTS")}


def test_it_is_the_wheel_that_runs(installed, tmp_path):
    code = "import dgconv; from dgconv.ops import native; print(dgconv.__file__, native.available())"
    done = subprocess.run(
        [installed / "bin/python", "-c", code], cwd=tmp_path, env=clean(), capture_output=True, text=True
    )
    assert str(installed) in done.stdout
    assert "True" in done.stdout


def test_the_workshop_is_not_in_it(installed):
    (packages,) = installed.glob("lib/python*/site-packages")
    assert not (packages / "reproduce").exists()
    assert not list((packages / "dgconv").rglob("claims.py"))


def test_train_and_explore(dgconv, installed, tmp_path):
    done = dgconv("train", "--epochs", "1", "--stages", "1", "--growth", "4", "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert 0 <= json.loads(done.stdout)["error"] <= 100
    server = subprocess.Popen(
        command(installed, "explore", "run"), cwd=tmp_path, env=clean(), stdout=subprocess.PIPE, text=True
    )
    try:
        timer = threading.Timer(120, server.kill)
        timer.start()
        line = server.stdout.readline()
        with urllib.request.urlopen(line.split(" is at ")[1].split()[0]) as page:
            assert b"<html" in page.read()
        timer.cancel()
    finally:
        server.terminate()
        server.wait()


def test_bench(dgconv):
    done = dgconv("bench", "condensenet20_dgc", "--repeats", "1", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout


SEVERAL = """import contextlib, io, json, sys
from dgconv.cli import main
results = []
for command in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(command.split())
        except SystemExit as end:
            code = end.code
    results.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(results))
"""


def test_short_commands_and_weights_that_are_not_in_it(installed, tmp_path):
    """In one process, for most of what they take is to import torch."""
    commands = ["macs resnet20_dgc --json", "models --json", "recipes --json"]
    without_weights = ["models --pretrained", "eval cifar10_condensenet50_dgc"]
    program = [installed / "bin/python", "-c", SEVERAL, json.dumps(commands + without_weights)]
    done = subprocess.run(program, cwd=tmp_path, env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    for code, output, errors in results[: len(commands)]:
        assert (code or 0, bool(output)) == (0, True), errors
    for code, _, errors in results[len(commands) :]:
        assert code == 2
        assert "DGCONV_WEIGHTS" in errors
