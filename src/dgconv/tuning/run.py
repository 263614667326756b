"""How a tuning is begun, and gone on with, in one run folder."""

import itertools
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ..data import Data
from ..data.folder import test_folder
from ..environment import refuse_missing_gpu
from ..errors import UserError
from ..files import UNFINISHED, check_folder, read_whole
from ..models.others import GIVEN, allow, copies_of, is_of_others
from ..runs.leftovers import content_of
from ..runs.lock import locked
from ..train.distributed import rank, started_by_torchrun
from ..train.tables import DataTable
from ..values import LONGEST_JSON, load_json
from .given import data_of
from .goal import Goal, Request, State
from .network import Opened, plain
from .planning import Plan
from .process import PLAN, Command, Process, open_for
from .result import Tell, Tuned
from .training import Watch

TEST_SHARE = 0.2  # of the training images, of a folder without test images
FEW_A_CLASS, FEW_STEPS = 20, 5  # with less, a fine-tuning learns the images by heart


def in_words(state: State) -> str:
    """For whoever calls the library."""
    return f"Give the {PLAN} of {state.folder} as `plan` to repeat what was decided here"


def unwatched(epochs: int) -> None:
    """Nobody."""


def tune(
    model: nn.Module,
    train: Iterable[Any],
    test: Iterable[Any],
    *,
    out: Path | str | None = None,
    device: str = "cpu",
    watch: Watch = unwatched,
    tell: Tell = lambda line: None,
    **goal: Any,
) -> Tuned:
    """Make a trained network of your own fast: plan by time, convert, fine-tune with distillation, int8, and measure.

    ::

        tuned = dgconv.tune(model, train_loader, test_loader, target_speedup=3.0, time=60)
        print(tuned)
        tuned.fast(images)

    Args:
        model: trained, called with one batch of images, giving logits. It is not changed.
        train, test: batches (images, labels), as loaders give them, or splits of :func:`dgconv.data.load_data`.
        out: run folder, new or empty; default ``runs/tune-NAME-N``.
        goal: see :class:`Goal`: ``target_speedup``, ``max_drop``, ``pruning_rate``, ``time``, ``epochs``, ...
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"tune takes an nn.Module, got a {type(model).__name__}")
    name = type(model).__name__
    source = f"{GIVEN}:{name}"
    allow(source, copies_of(model))
    data = data_of(train, test)
    request = Request(source, None, DataTable(name="given"), Goal(**goal))
    return begin(
        request,
        Path(out) if out is not None else free_folder(name),
        data=data,
        device=device,
        watch=watch,
        tell=tell,
    )


def free_folder(name: str, parent: Path = Path("runs")) -> Path:
    """The first ``runs/tune-NAME-N`` that is not there."""
    words = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in Path(name).name) or "network"
    return next(f for n in itertools.count(1) if not (f := parent / f"tune-{words}-{n}").exists())


def begin(
    request: Request,
    folder: Path,
    *,
    data: Data | None = None,
    plan_file: Path | None = None,
    dry_run: bool = False,
    device: str = "cpu",
    watch: Watch = unwatched,
    tell: Tell = lambda line: None,
    command: Command = in_words,
) -> Tuned:
    """A tuning in a new folder. With ``dry_run`` it ends with the plan, and what it measured is thrown away.

    Args:
        plan_file: a plan of another tuning, to repeat what that decided.
    """
    check_folder(folder)
    if not started_by_torchrun() and folder.exists() and any(map(_is_content, content_of(folder))):
        raise UserError(f"{folder} exists and is not empty; name another folder with `out`, or use `resume`")
    refuse_missing_gpu(device)
    if started_by_torchrun() and request.goal.epochs is None:
        raise UserError("under torchrun say how many `epochs` to train; one process alone cannot estimate it")
    if started_by_torchrun() and request.goal.against is not None:
        raise UserError("under torchrun leave `against` out; tune the same network for comparison without it")
    request, notes = _with_test_images(request, data)
    data = data or request.data.load()
    opened = open_for(request, data)
    plan = read_plan(plan_file, opened) if plan_file else None
    notes += [*opened.notes, *remarks(data, request.goal)]
    state = State(folder, request)
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder):
        state.done |= {"notes": notes, "new head": opened.has_new_head}
        if plan:
            state.done["plan"] = plan.to_dict()
        state.write()
        return Process(state, data, device, watch, tell, command).run(dry_run)


def resume(
    folder: Path | str,
    *,
    network: str | None = None,
    data: Data | None = None,
    time: float | None = None,
    device: str = "cpu",
    watch: Watch = unwatched,
    tell: Tell = lambda line: None,
    command: Command = in_words,
) -> Tuned:
    """Goes on with a tuning that was stopped, exactly as if it had not been.

    Args:
        network: once more, where it is made by a file of code; it is not run because a folder names it.
        time: minutes that the rest may take; default as many as at first.
    """
    folder = Path(folder)
    refuse_missing_gpu(device)
    state = State.read(folder)
    if network is not None and network != state.request.network:
        raise UserError(f"the tuning in {folder} is of {state.request.network}, not of {network}")
    if network is not None and is_of_others(network) and network.rpartition(":")[0].endswith(".py"):
        allow(network)
    if data is None and state.request.data.name == "given":
        raise UserError(f"the data of {folder} was given by a program; give it again, with `data`")
    if time is not None:
        state.request = replace(state.request, goal=replace(state.request.goal, time=time))
    data = data or state.request.data.load()
    with _held(folder):
        return Process(state, data, device, watch, tell, command).run()


@contextmanager
def _held(folder: Path) -> Any:
    """Nobody else tunes in the folder meanwhile; of several processes the first one holds it."""
    with locked([folder] if rank() == 0 else []):
        yield


def _is_content(entry: Path) -> bool:
    """Whether it is more than what a process left that was killed before it began."""
    return not entry.name.endswith(UNFINISHED)


def _with_test_images(request: Request, data: Data | None) -> tuple[Request, list[str]]:
    """The request, and what is to be said, where a folder has no images to test on."""
    table = request.data
    if data is not None or table.name != "folder" or table.dir is None or table.test_share is not None:
        return request, []
    root = Path(table.dir).expanduser()
    if not root.is_dir() or test_folder(root) is not None:
        return request, []
    note = f"{root} has no test images: a fifth of the training images, always the same, is tested on instead"
    return replace(request, data=replace(table, test_share=TEST_SHARE)), [note]


def remarks(data: Data, goal: Goal) -> list[str]:
    """What is odd about the data; a ``UserError`` where nothing can be learned from it."""
    classes = int(data.train.labels.unique().numel())
    if len(data.classes) < 2 or classes < 2:
        raise UserError(f"the data has one class only, {data.classes[0]}: there is nothing to tell apart")
    notes = []
    images = len(data.train)
    if images < FEW_A_CLASS * len(data.classes) or images < FEW_STEPS * min(goal.batch_size, images):
        notes.append(
            f"{images} training images of {len(data.classes)} classes are few to fine-tune on; expect the error to rise"
        )
    return notes


def read_plan(path: Path, opened: Opened) -> Plan:
    """The plan of another tuning, for this network."""
    try:
        values = load_json(read_whole(path, LONGEST_JSON))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. `plan` takes the plan.json of a tuning") from None
    except ValueError as error:
        raise UserError(f"{path} is no plan: {error}") from None
    plan = Plan.from_dict(values if isinstance(values, dict) else {}, str(path))
    there = {name for name, _ in plain(opened.model).named_modules()}
    if missing := sorted(plan.converted.keys() - there):
        raise UserError(f"{path} is the plan of another network: it names {', '.join(missing[:4])}")
    return plan
