"""Two processes against one: the same gradients, threshold and result. gloo on the CPU."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import timedelta

import psutil
import pytest
import torch
from processes import FORKSERVER
from safetensors.torch import load_file
from torch.multiprocessing import start_processes

from dgconv.cli import main
from dgconv.cost.macs import count_macs
from dgconv.data import load_data
from dgconv.errors import UserError
from dgconv.layers.controller import Place
from dgconv.models import create_model
from dgconv.runs.checkpoint import load_checkpoint
from dgconv.runs.names import CHECKPOINT
from dgconv.train import Recipe, side_by_side, train, train_all
from dgconv.train.beginning import refuse_mistakes
from dgconv.train.diagnose import Diverged
from dgconv.train.distributed import exiting_at_once, synchronize_batch_norm
from dgconv.train.run import Run

OPTIONS = {"stages": (2, 2), "growth": (4, 8), "image_size": 8, "batch_size": 64, "epochs": 1}


def one_step(folder, model, shard=(0, 1)):
    """Gradients, batch statistics and the threshold of the first step, in double precision."""
    folder.mkdir(exist_ok=True)
    torch.set_default_dtype(torch.float64)
    try:
        run = Run(Recipe.of(model=model, **OPTIONS), folder, load_data("digits", image_size=8), torch.device("cpu"))
        batches = run.data.train.batches(64, train=True, generator=torch.Generator().manual_seed(0), shard=shard)
        x, target = next(iter(batches))
        run.optimizer.step = lambda: None
        saliencies = run._train(x.double(), target)
        steps = run.steps_per_epoch
        run.controllers.after_step(saliencies, Place(0, steps - 1, steps))
        threshold = run.controllers.end_epoch(1.0)
    finally:
        torch.set_default_dtype(torch.float32)
    gradients = {name: parameter.grad.clone() for name, parameter in run.model.named_parameters()}
    statistics = {name: buffer.clone() for name, buffer in run.model.named_buffers() if "running" in name}
    return gradients | statistics, threshold


def in_a_group(rank, folder, model):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(one_step(folder / "run", model, (rank, 2)), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
    os._exit(0)  # a thread of torch's that still runs would now and then abort a plain exit


@pytest.mark.slow
@pytest.mark.parametrize("model", ["condensenet20_dgc", "condensenet20_dgcg"])
def test_two_processes_give_the_gradients_of_one(tmp_path, model):
    expected, threshold = one_step(tmp_path / "alone", model)
    start_processes(in_a_group, (tmp_path, model), nprocs=2, start_method=FORKSERVER.get_start_method())
    for rank in range(2):
        values, group_threshold = torch.load(tmp_path / f"{rank}.pt")
        assert (group_threshold is None) == (threshold is None) == (model == "condensenet20_dgc")
        assert group_threshold == pytest.approx(threshold, abs=1e-6)
        for name, value in values.items():
            scale = expected[name].abs().max().clamp(min=1e-3)
            assert (value - expected[name]).abs().max() / scale < 1e-6, name


@pytest.mark.parametrize(
    ("batch_size", "message"), [(63, "must be a multiple of the 2"), (1500, "1437 training images do not fill a batch")]
)
def test_batches_that_processes_cannot_share_evenly_are_refused(batch_size, message, tmp_path, monkeypatch):
    monkeypatch.setattr("dgconv.train.beginning.world_size", lambda: 2)
    recipe, data = Recipe.of(model="condensenet20", **OPTIONS), load_data("digits", image_size=8)
    refuse_mistakes(recipe, tmp_path, data, None)
    with pytest.raises(UserError, match=message):
        refuse_mistakes(recipe.changed(batch_size=batch_size), tmp_path, data, None)
    with pytest.raises(UserError, match=message):
        Run(recipe.changed(batch_size=batch_size), tmp_path, data, torch.device("cpu"))


def test_what_is_synchronized_evaluates_and_costs_the_same():
    model, x = create_model("condensenet20_dgc").eval(), torch.randn(2, 3, 32, 32)
    logits, macs = model(x), count_macs(model, convention="authors").macs
    synchronize_batch_norm(model)
    assert torch.equal(model(x), logits)
    assert count_macs(model, convention="authors").macs == macs


def in_a_group_with_clocks_of_their_own(rank, folder):
    torch.set_num_threads(1)
    meet, timeout = f"file://{folder}/meet", timedelta(seconds=30)
    torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=timeout)
    side_by_side.LOOK_EVERY = -1.0 if rank == 0 else 1e9
    recipe = Recipe.of(model="condensenet20", **OPTIONS)
    try:
        train_all([(recipe.changed(learning_rate=1e20), folder / "bad"), (recipe, folder / "good")])
    except Diverged as diverged:
        (folder / f"{rank}.txt").write_text(str(diverged))
    os._exit(0)


@pytest.mark.slow
def test_ranks_drop_a_network_that_diverges_together(tmp_path):
    group = {"nprocs": 2, "start_method": FORKSERVER.get_start_method()}
    start_processes(in_a_group_with_clocks_of_their_own, (tmp_path,), **group)
    assert "training diverged in epoch 1" in (tmp_path / "0.txt").read_text()
    assert (tmp_path / "0.txt").read_text() == (tmp_path / "1.txt").read_text()
    assert load_checkpoint(tmp_path / "good").position.epoch == 1


def arguments(folder, epochs):
    small = ["--stages", "1", "1", "--growth", "4", "8", "--image-size", "8", "--batch-size", "64"]
    calm = ["--generator-shrinkage", "None"]  # in three epochs it would make small differences large
    saving = ["--checkpoint-minutes", "0", "--out", str(folder), "--device", "cpu"]
    return ["train", *small, *calm, "--epochs", str(epochs), *saving]


def one_of_torchruns(rank, port, output, arguments):
    """A process as torchrun starts it, but one that has imported all it needs."""
    torch.set_num_threads(1)
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    for number, file in ((1, f"{output}/out.txt"), (2, f"{output}/errors.txt")):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    main(arguments)


def run_as_two(output, arguments):
    """What both wrote to their output and to their standard error."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    given = (port, output, arguments)
    start_processes(one_of_torchruns, given, nprocs=2, start_method=FORKSERVER.get_start_method())
    return (output / "out.txt").read_text(), (output / "errors.txt").read_text()


class Ended(BaseException):
    pass


@pytest.mark.parametrize(("ends", "status"), [(None, 0), (0, 0), (2, 2), ("a message", 1)])
def test_a_process_of_torchrun_ends_at_once_with_its_status(monkeypatch, ends, status):
    def end(status):
        raise Ended(status)

    def work():
        with exiting_at_once():
            if ends is not None:
                sys.exit(ends)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with nullcontext() if ends is None else pytest.raises(SystemExit):
        work()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    with pytest.raises(Ended) as ended:
        work()
    assert ended.value.args == (status,)


@pytest.mark.slow
def test_two_processes_train_as_one_does(tmp_path):
    shown, _ = run_as_two(tmp_path, arguments(tmp_path / "two", 3))
    recipe = {"stages": (1, 1), "growth": (4, 8), "image_size": 8, "batch_size": 64, "epochs": 3}
    train(Recipe.of(**recipe), tmp_path / "one")
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    for alone, together in zip(one, two, strict=True):
        assert together["train_loss"] == pytest.approx(alone["train_loss"], rel=0.02)
        assert together["pruned_share"] == pytest.approx(alone["pruned_share"], abs=1e-6)
    assert shown.count("top-1 error") == 1, "rank 0 alone reports"


@pytest.mark.slow
def test_ranks_stop_together_when_their_time_is_over(tmp_path):
    folder = tmp_path / "run"
    _, errors = run_as_two(tmp_path, [*arguments(folder, 50), "--stop-after", "0.01"])
    assert errors.count("stopped after 0.01 minutes and saved") == 1
    assert 0 < load_checkpoint(folder).position.epoch < 50


@pytest.mark.slow
def test_torchrun_starts_a_killed_worker_again_and_the_run_finishes(tmp_path):
    folder = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "--max-restarts", "2", "-m", "dgconv", *arguments(folder, 4)]
    environment, pipe = os.environ | {"OMP_NUM_THREADS": "1"}, subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment)
    while not (folder / CHECKPOINT).exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    workers = [p for p in psutil.Process(process.pid).children(recursive=True) if "--out" in p.cmdline()]
    os.kill(workers[-1].pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert output.count("top-1 error") == 1, output
    assert process.returncode == 0, output
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
    assert all(tensor.isfinite().all() for tensor in load_file(folder / "model.safetensors").values())
