"""The command that makes a trained network fast."""

import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from tyro.conf import Positional

from ..errors import UserError
from ..files import check_folder
from ..text import PlainConsole
from ..train import Stopped
from ..train.distributed import rank, started_by_torchrun
from ..train.tables import DataTable, Precision
from ..tuning.goal import Goal, Request, State
from ..tuning.process import PLAN
from ..tuning.result import Tuned
from ..tuning.run import begin, free_folder
from ..tuning.run import resume as go_on
from ._device import find_device
from ._display import TrainingDisplay
from ._output import console, show
from .train import process_group


def tune(
    network: Positional[str] = "",
    weights: Path | None = None,
    data: str = "folder",
    data_dir: str | None = None,
    image_size: int | None = None,
    label_column: str | None = None,
    smallest_crop: float | None = None,
    workers: int | None = None,
    in_memory: bool = False,
    skip_corrupt_images: bool = False,
    target_speedup: float | None = None,
    max_drop: float | None = None,
    pruning_rate: float | None = None,
    time: float | None = None,
    epochs: int | None = None,
    batch_size: int = Goal.batch_size,
    learning_rate: float = Goal.learning_rate,
    distillation_weight: float = Goal.distillation_weight,
    against: Literal["static"] | None = None,
    precision: Precision | None = None,
    replace_head: bool = False,
    plan: Path | None = None,
    threads: tuple[int, ...] = Goal.threads,
    seed: int = 0,
    out: Path | None = None,
    resume: Path | None = None,
    dry_run: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
) -> None:
    """Make a trained network fast: measure it, convert what pays, fine-tune it with its own answers, int8, and report.

    The run folder holds fast/, which dgconv.deploy.load reads, the float model, and report.html.

    Args:
        network: timm:NAME, torchvision:NAME, FILE.py:FUNCTION, a run folder, a published network or a model's name.
        weights: Its weights: a .safetensors file, or a state dict as torch.save writes it. A run folder has its own.
        data: Data set: digits, cifar10, cifar100, parquet or folder, as for 'dgconv train'.
        data_dir: Folder of the data set.
        image_size: Side of the images.
        label_column: Column to take the labels from, in Parquet files that have several.
        smallest_crop: Share of a photo that a training crop covers at least; default 0.08.
        workers: Processes that decode large images; default one a core, at most 8.
        in_memory: Decode photos once and keep them in memory.
        skip_corrupt_images: Name corrupt images in a warning and go on without them.
        target_speedup: Of the whole network over its fastest dense form in float32; the least rate is taken for it.
        max_drop: Points by which the error may rise.
        pruning_rate: Share of the input channels that each head leaves out; default 3/4, or what the target needs.
        time: Minutes that all of it may take; default 60.
        epochs: Of the fine-tuning; default as many as fit into the time, at most 30.
        batch_size: Images a step; fewer are taken where memory is short.
        learning_rate: At the start of the fine-tuning.
        distillation_weight: Weight of imitating the network as it was; that of the labels is 1.
        against: static prunes filters under the same epochs, too, to compare.
        precision: Of the training: bfloat16 where the machine is faster at it, else float32.
        replace_head: Put in a new last layer where the classes are others, and train that first.
        plan: plan.json of another tuning, to repeat what that decided.
        threads: Numbers of threads to time with; the first one decides.
        seed: Decides all that is random.
        out: Run folder, new or empty; default runs/tune-NETWORK-N.
        resume: Run folder to go on with; a network in a FILE.py must be named again.
        dry_run: Only print the plan and an estimate of the time.
        device: Where to train; auto takes a GPU if there is one. Timing is always on the CPU.
        json: Print JSON instead of tables.
    """
    device_name = find_device(device)
    if resume is None and not network:
        raise UserError("name a network, such as timm:resnet18, or give `resume` a run folder to go on with")
    if resume is not None and dry_run:
        raise UserError("`dry_run` is for a tuning that was not begun; leave it or `resume` out")
    if resume is None and out is None and started_by_torchrun() and not dry_run:
        raise UserError("under torchrun name the run folder with `out`, so that all processes find it")
    table = DataTable(
        name=data,
        dir=data_dir,
        image_size=image_size,
        label_column=label_column,
        smallest_crop=smallest_crop,
        workers=workers,
        in_memory=in_memory,
        skip_corrupt_images=skip_corrupt_images,
    )
    goal = Goal(
        target_speedup=target_speedup,
        max_drop=max_drop,
        pruning_rate=pruning_rate,
        time=time or Goal.time,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        distillation_weight=distillation_weight,
        against=against,
        precision=precision,
        replace_head=replace_head,
        threads=threads,
        seed=seed,
    )
    with process_group(device_name) as (device_name, is_first), _folder(out, network, dry_run) as folder:
        progress = PlainConsole(stderr=json, quiet=not is_first)
        with _display(progress) as display, _telling_how_to_go_on(resume or folder, network, dry_run):
            followed: dict[str, Any] = {"watch": partial(_watch, display), "tell": _teller(display)}
            followed |= {"device": device_name, "command": repeating}
            if resume is not None:
                tuned = go_on(resume, network=network or None, time=time, **followed)
            else:
                request = Request(network, str(weights) if weights else None, table, goal)
                tuned = begin(request, folder, plan_file=plan, dry_run=dry_run, **followed)
        if is_first:
            show(tuned.results, json, lambda _: _print(tuned, dry_run))


def _print(tuned: Tuned, dry_run: bool) -> None:
    if dry_run:
        console.print(tuned.plan)
        if settings := tuned.results["settings"]:
            console.print(
                f"Estimated: {settings['seconds'] / 60:.1f} minutes for {settings['epochs']} epochs of fine-tuning."
            )
        return
    console.print(tuned)
    console.print(f"Run folder: {tuned.folder}, with report.html", soft_wrap=True)


@contextmanager
def _folder(out: Path | None, network: str, dry_run: bool) -> Iterator[Path]:
    """The run folder; of a dry run one that goes again."""
    if dry_run:
        with tempfile.TemporaryDirectory() as place:
            yield Path(place) / "run"
        return
    folder = out or free_folder(network.replace(":", "-"))
    check_folder(folder)
    yield folder


@contextmanager
def _display(progress: Console) -> Iterator[TrainingDisplay]:
    with TrainingDisplay(progress, [1]) as display:
        yield display


def repeating(state: State) -> str:
    """The command that repeats a tuning with the same decisions."""
    request, goal, settings = state.request, state.request.goal, state.done["settings"]
    given = {
        "weights": request.weights,
        "data": request.data.name,
        "data-dir": request.data.dir,
        "image-size": request.data.image_size,
        "label-column": request.data.label_column,
        "smallest-crop": request.data.smallest_crop,
        "max-drop": goal.max_drop,
        "epochs": settings.get("epochs"),
        "batch-size": settings.get("batch_size"),
        "learning-rate": goal.learning_rate,
        "distillation-weight": goal.distillation_weight,
        "against": goal.against,
        "precision": state.done.get("precision"),
        "seed": goal.seed,
        "plan": state.folder / PLAN,
    }
    parts = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
    return shlex.join(["dgconv", "tune", request.network, *parts, *["--replace-head"] * goal.replace_head])


def _watch(display: TrainingDisplay, epochs: int) -> TrainingDisplay:
    display.epochs = [epochs]
    return display


def _teller(display: TrainingDisplay) -> Any:
    return lambda line: display.progress.console.print(line, soft_wrap=True, highlight=False)


@contextmanager
def _telling_how_to_go_on(folder: Path, network: str, dry_run: bool) -> Iterator[None]:
    """Ctrl-C and the like end in the command that goes on."""
    again = [network] if ".py:" in network else []
    command = f"dgconv tune {shlex.join([*again, '--resume', str(folder)])}"
    try:
        yield
    except Stopped as stopped:
        if rank() == 0 and not dry_run:
            print(f"dgconv: {stopped.telling(f'To go on: {command}')}", file=sys.stderr)
        sys.exit(stopped.exit_status)
    except KeyboardInterrupt:
        told = "interrupted" if dry_run else f"interrupted. To go on: {command}"
        print(f"dgconv: {told}", file=sys.stderr)
        sys.exit(130)
