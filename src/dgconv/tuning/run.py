"""A tuning from beginning to end, in one run folder that it can go on from."""

import itertools
import json
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import nn

from ..data import Data, Inputs
from ..data.folder import test_folder
from ..deploy import save
from ..deploy.precision import Precision
from ..deploy.run.prepared import PreparedModel
from ..environment import describe_environment, refuse_missing_gpu
from ..errors import UserError
from ..files import UNFINISHED, check_folder, read_whole, write_atomically
from ..models import ImageClassifier, load_model, save_model
from ..models.others import GIVEN, allow, copies_of, is_of_others
from ..pruning import what_is_left
from ..runs import RunFolder
from ..runs.lock import content_of, locked
from ..text import as_text
from ..train import Recipe, TimeLimit
from ..train.distributed import rank, started_by_torchrun
from ..train.evaluate import evaluate
from ..train.recipe import DataTable, TrainingTable
from ..train.side_by_side import Watcher
from ..values import LONGEST_JSON, load_json
from . import steps
from .given import data_of
from .goal import Goal, Request, State
from .network import Opened, open_network, plain
from .planning import Plan
from .planning import plan as make_plan
from .report import write_report

ORIGINAL, HEAD, TRAINING, STATIC, FAST = "original", "head", "training", "static", "fast"
START, RESULTS, PLAN, REPORT = "start.safetensors", "results.json", "plan.json", "report.html"
TEST_SHARE = 0.2  # of the training images, of a folder without test images
FEW_A_CLASS, FEW_STEPS = 20, 5  # with less, a fine-tuning learns the images by heart
INT8_DROP = 0.5  # points that int8 may cost over float32, to be taken
AS_IT_IS = "the network as it is"
SHARE_OF_HEAD = 0.3  # of the time, for a new last layer
LEAST_LIMIT = 5.0  # seconds of training, however little time is left

Tell = Callable[[str], None]
Command = Callable[[State], str]  # how to repeat a tuning
Watch = Callable[[int], Watcher | None]  # who follows a training of so many epochs


def in_words(state: State) -> str:
    """For whoever calls the library."""
    return f"Give the {PLAN} of {state.folder} as `plan` to repeat what was decided here"


def unwatched(epochs: int) -> None:
    """Nobody."""


@dataclass(frozen=True)
class Tuned:
    """What came out. ``print`` it for a table; ``fast`` is what ``deploy.load(folder / "fast")`` gives, too."""

    model: nn.Module
    fast: PreparedModel | None
    plan: Plan
    results: dict[str, Any]
    folder: Path

    def __rich__(self) -> Group:
        return show_results(self.results)

    def __str__(self) -> str:
        return as_text(self)


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
    opened = _open(request, data)
    plan = read_plan(plan_file, opened) if plan_file else None
    notes += [*opened.notes, *remarks(data, request.goal)]
    state = State(folder, request)
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder):
        state.done |= {"notes": notes, "new head": opened.has_new_head}
        if plan:
            state.done["plan"] = plan.to_dict()
        state.write()
        return _Tuning(state, data, device, watch, tell, command).run(dry_run)


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
        return _Tuning(state, data, device, watch, tell, command).run()


@contextmanager
def _held(folder: Path) -> Any:
    """Nobody else tunes in the folder meanwhile; of several processes the first one holds it."""
    with locked([folder] if rank() == 0 else []):
        yield


def _is_content(entry: Path) -> bool:
    """Whether it is more than what a process left that was killed before it began."""
    return not entry.name.endswith(UNFINISHED)


def _open(request: Request, data: Data) -> Opened:
    return open_network(
        request.network,
        data.classes,
        data.input_size,
        weights=Path(request.weights) if request.weights else None,
        replace_head=request.goal.replace_head,
    )


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


class _Tuning:
    """One tuning under way."""

    def __init__(self, state: State, data: Data, device: str, watch: Watch, tell: Tell, command: Command) -> None:
        self.state, self.data, self.device = state, data, torch.device(device)
        self.watch, self.command, self.tell = watch, command, tell if rank() == 0 else lambda line: None
        self.goal, self.folder = state.request.goal, state.folder
        self.notes: list[str] = state.done.get("notes", [])
        self.began = time.monotonic()

    def run(self, dry_run: bool = False) -> Tuned:
        for note in self.notes:
            self.tell(f"note: {note}")
        self.state.step("original", self._keep_original)
        if self.state.done.get("new head"):
            self._train_head()
        original = load_model(self.folder / ORIGINAL)
        before = self.state.step("before", lambda: self._measure_before(original))
        plan = Plan.from_dict(self.state.step("plan", lambda: self._plan(original, before)), str(self.folder))
        self.tell(plan.summary)
        settings = self.state.step("settings", lambda: self._settle_settings(original, plan, before))
        if plan.is_worth_it:
            self.tell(
                f"{settings['epochs']} epochs of {settings['batch_size']} images a step, "
                f"{settings['seconds'] / 60:.0f} minutes of fine-tuning, estimated"
            )
        if dry_run:
            self.state.done["results"] = {}
            return Tuned(
                plain(original),
                None,
                plan,
                {"plan": plan.to_dict(), "settings": settings, "before": before},
                self.folder,
            )
        tuned: ImageClassifier | None = None
        rows: list[dict[str, Any]] = [_row(AS_IT_IS, "float32", before["error"], None)]
        if "int8" in before["errors"]:
            rows.append(_row(AS_IT_IS, "int8", before["errors"]["int8"], None))
        if plan.is_worth_it:
            tuned = self._fine_tune(original, plan, settings, rows, before)
        if tuned is not None and self.goal.against == "static":
            self._against_static(original, tuned, settings, rows)
        return self._end(original, tuned, plan, before, rows)

    def _keep_original(self) -> bool:
        """A run folder of the network as it is: what is measured, what is converted, and the teacher."""
        model = _open(self.state.request, self.data).model
        images = Inputs.of(self.data).of_images
        facts = {"input_size": self.data.input_size, "classes": self.data.classes, "images": images}
        save_model(model, self.folder / ORIGINAL, **facts)
        return True

    # -- before --------------------------------------------------------------------------------------------------

    def _left(self) -> float:
        """Seconds."""
        return 60 * self.goal.time - (time.monotonic() - self.began)

    def _train_head(self) -> None:
        """A new last layer is trained, with all the rest, before anything is decided."""
        original = load_model(self.folder / ORIGINAL)
        settings = self.state.step("head", lambda: self._settle_head(original))
        recipe = self._recipe(original, "head", {}, settings, teacher=False)
        if not self.state.done.get("head done"):
            limit = TimeLimit(max(LEAST_LIMIT, SHARE_OF_HEAD * self._left()) / 60)
            self.tell(f"the new last layer is trained: {settings['epochs']} epochs")
            self._train_until(recipe, self.folder / HEAD, limit)
            if rank() == 0:
                trained = load_model(self.folder / HEAD) if RunFolder(self.folder / HEAD).has_config else original
                save_model(trained, self.folder / ORIGINAL, input_size=self.data.input_size, classes=self.data.classes)
            self.state.step("head done", lambda: True)

    def _settle_head(self, original: ImageClassifier) -> dict[str, Any]:
        settings = {"batch_size": self._batch_size(), "epochs": 1}
        batch, seconds = self._timed_batch(original, "head", {}, settings, teacher=False)
        an_epoch = self._steps(batch) * seconds
        epochs = int(SHARE_OF_HEAD * self._left() / max(an_epoch, 1e-3))
        return {"batch_size": batch, "epochs": max(1, min(self.goal.epochs or 10, epochs)), "seconds": an_epoch}

    def _measure_before(self, original: ImageClassifier) -> dict[str, Any]:
        self.tell("measuring the network as it is")
        begin = time.monotonic()
        evaluation = evaluate(original, self.data.test)
        seconds = time.monotonic() - begin
        forms = steps.forms_of(original, self.data, self.notes, AS_IT_IS)
        bench = steps.time_all(None, original, self.data, self.goal.threads)
        runtime, best = steps.fastest(asdict(bench), "float32")
        self.tell(f"error {evaluation.error:.2f} %; fastest in float32: {runtime}, {1e3 * best:.2f} ms")
        return {
            "error": evaluation.error,
            "evaluation_seconds": seconds,
            "errors": {precision: form.error for precision, form in forms.items()},
            "runtime": runtime,
            "baseline": best,
            "measuring_seconds": time.monotonic() - begin,
            "bench": bench.to_dict(),
        }

    def _plan(self, original: ImageClassifier, before: dict[str, Any]) -> dict[str, Any]:
        self.tell("timing every layer, dense and dynamic")
        image = next(iter(self.data.test.batches(1, train=False)))[0]
        return make_plan(
            plain(original),
            image,
            target_speedup=self.goal.target_speedup,
            pruning_rate=self.goal.pruning_rate,
            threads=self.goal.threads[0],
            baseline=before["baseline"],
        ).to_dict()

    def _batch_size(self) -> int:
        return min(self.goal.batch_size, len(self.data.train))

    def _steps(self, batch_size: int) -> int:
        return max(1, len(self.data.train) // batch_size)

    def _settle_settings(self, original: ImageClassifier, plan: Plan, before: dict[str, Any]) -> dict[str, Any]:
        """How many epochs fit into the time, and how many images a step into the memory."""
        if not plan.is_worth_it:
            return {}
        settings = {"batch_size": self._batch_size(), "epochs": self.goal.epochs or 1}
        if started_by_torchrun():
            return settings | {"seconds": 0.0}
        self.tell("timing a few steps of the training")
        batch, seconds = self._timed_batch(original, "tuned", self._options(original, plan), settings, teacher=True)
        an_epoch = self._steps(batch) * seconds + before["evaluation_seconds"]
        epochs = max(1, min(steps.MOST_EPOCHS, int((self._left() - self._reserve(before)) / max(an_epoch, 1e-3))))
        if self.goal.epochs is None and epochs < 3:
            self.notes.append(
                f"there is time for {epochs} epoch{'s' * (epochs > 1)} only, of {an_epoch:.0f} seconds each"
            )
        chosen = self.goal.epochs or epochs
        return {"batch_size": batch, "epochs": chosen, "seconds": chosen * an_epoch, "seconds_a_step": seconds}

    def _reserve(self, before: dict[str, Any]) -> float:
        """Seconds that what comes after the training will take."""
        of_static = 0.5 * self._left() if self.goal.against else 0.0
        return float(1.5 * before["measuring_seconds"] + 6 * before["evaluation_seconds"]) + of_static

    def _timed_batch(
        self, original: ImageClassifier, name: str, options: dict[str, Any], settings: dict[str, Any], *, teacher: bool
    ) -> tuple[int, float]:
        def try_it(batch_size: int) -> float:
            recipe = self._recipe(original, name, options, settings | {"batch_size": batch_size}, teacher=teacher)
            return steps.seconds_a_step(recipe, self.data, self.device)

        return steps.fitting_batch(try_it, settings["batch_size"], self.notes)

    # -- training ------------------------------------------------------------------------------------------------

    def _options(self, original: ImageClassifier, plan: Plan) -> dict[str, Any]:
        """What becomes of the layers, by their names in our network."""
        before = "" if plain(original) is original else "network."
        return {"converted": {before + name: options for name, options in plan.converted.items()}}

    def _recipe(
        self, original: ImageClassifier, name: str, options: dict[str, Any], settings: dict[str, Any], *, teacher: bool
    ) -> Recipe:
        start = (self.folder / f"{name}-{START}").absolute()
        source = self.folder.absolute() / ORIGINAL
        training = TrainingTable(
            init_from=str(start),
            epochs=settings["epochs"],
            batch_size=settings["batch_size"],
            learning_rate=self.goal.learning_rate,
            distillation_weight=self.goal.distillation_weight,
            teacher=str(source) if teacher else None,
            ramp_end=steps.RAMP_END,
            seed=self.goal.seed,
        )
        recipe = steps.recipe_of(original, self.state.request.data, name, options, training)
        classes = len(self.data.classes)
        self.state.step(f"start of {name}", lambda: steps.write_start(original, recipe, classes, start))
        return recipe

    def _train(self, original: ImageClassifier, name: str, options: dict[str, Any], folder: Path, share: float) -> bool:
        """With fewer images a step where memory is short after all. False if there was no time for one epoch."""
        while True:
            settings = self.state.done["settings"]
            recipe = self._recipe(original, name, options, settings, teacher=True)
            limit = TimeLimit(max(LEAST_LIMIT, share * self._left()) / 60)
            try:
                if self._train_until(recipe, folder, limit):
                    return True
            except (MemoryError, RuntimeError) as error:
                if not steps.is_lack_of_memory(error) or settings["batch_size"] == 1:
                    raise
                batch = steps.smaller_batch(settings["batch_size"], self.notes)
                self.state.put("settings", settings | {"batch_size": batch})
                steps.remove(folder)
                continue
            epochs = len(RunFolder(folder).metrics)
            self.notes.append(
                f"the time ended after {epochs} of {settings['epochs']} epochs of {name}"
                + (": it is used as it was then" if epochs else ", before the first one was done")
            )
            return epochs > 0

    def _train_until(self, recipe: Recipe, folder: Path, limit: TimeLimit) -> bool:
        watcher = self.watch(recipe.training.epochs)
        return steps.train_until(recipe, folder, self.data, str(self.device), limit, watcher)

    def _fine_tune(
        self,
        original: ImageClassifier,
        plan: Plan,
        settings: dict[str, Any],
        rows: list[dict[str, Any]],
        before: dict[str, Any],
    ) -> ImageClassifier | None:
        """The network converted and trained, and its batch norms measured anew."""
        options, folder = self._options(original, plan), self.folder / TRAINING
        share = 0.5 if self.goal.against else 1.0
        if "trained" not in self.state.done:
            self.tell("fine-tuning with a rising rate, and the network as it was as its teacher")
            is_there = self._train(original, "tuned", options, folder, share)
            self.state.step("trained", lambda: is_there)
        if not self.state.done["trained"] or rank() != 0:
            return None
        model = load_model(folder)
        trained = self.state.step("trained error", lambda: evaluate(model, self.data.test).error)
        rows.append(_row(f"converted and fine-tuned, {settings['epochs']} epochs", "float32", trained, None))
        steps.measure_norms_anew(model, self.data)
        error = self.state.step("error", lambda: evaluate(model, self.data.test).error)
        rows.append(_row("batch norms measured anew", "float32", error, None))
        if self.goal.max_drop is not None:
            most = before["error"] + self.goal.max_drop
            model, rate, error = steps.within_drop(model, self.data, most, error, self.tell)
            rows.append(_row(f"at rate {rate:g}, for the allowed drop", "float32", error, None))
            if error > most:
                self.notes.append(
                    f"a drop of {self.goal.max_drop:g} points is not met: the best found is {error:.2f} %"
                )
        config = RunFolder(folder).config
        extra = {
            key: config[key] for key in ("recipe", "classes", "images", "epochs_done", "environment") if key in config
        }
        save_model(model, self.folder, **extra, input_size=self.data.input_size)
        RunFolder(self.folder).write_metrics(RunFolder(folder).metrics_bytes)
        return model

    def _against_static(
        self, original: ImageClassifier, tuned: ImageClassifier, settings: dict[str, Any], rows: list[dict[str, Any]]
    ) -> None:
        """The original with filters pruned for good, to as many MACs, in the same epochs with the same teacher."""
        from ..cost import count_macs

        def train() -> dict[str, Any]:
            self.tell("the same with static filter pruning, to compare")
            cost = count_macs(tuned, self.data.input_size, "paper")
            budget = round(cost.macs / cost.dense_macs, 4)
            options = {"prune": "fpgm", "prune_budget": budget}
            try:
                if not self._train(original, "static", options, self.folder / STATIC, 1.0):
                    return {}
            except UserError as error:
                self.notes.append(f"static pruning cannot be compared: {error}")
                return {}
            left = what_is_left(load_model(self.folder / STATIC))
            forms = steps.forms_of(left, self.data, self.notes, "statically pruned")
            bench = steps.time_all(left, original, self.data, self.goal.threads)
            return {
                precision: [form.error, steps.seconds_of(asdict(bench), "model", precision)]
                for precision, form in forms.items()
            }

        for precision, (error, seconds) in self.state.step("static", train).items():
            rows.append(_row("static filter pruning (FPGM), as many MACs", precision, error, seconds))

    # -- the end -------------------------------------------------------------------------------------------------

    def _end(
        self,
        original: ImageClassifier,
        tuned: ImageClassifier | None,
        plan: Plan,
        before: dict[str, Any],
        rows: list[dict[str, Any]],
    ) -> Tuned:
        """Measures again, keeps the fastest form, and writes all of it down."""
        if rank() != 0:
            return Tuned(plain(original), None, plan, {}, self.folder)
        self.tell("measuring again")
        forms = steps.forms_of(tuned, self.data, self.notes, "the tuned network") if tuned is not None else {}
        bench = self.state.step(
            "bench", lambda: steps.time_all(tuned, original, self.data, self.goal.threads).to_dict()
        )
        kinds = {"original": "dense", "tuned": "model"}
        errors = {"original": before["errors"], "tuned": {precision: form.error for precision, form in forms.items()}}
        found = {
            (which, precision): (error, steps.seconds_of(bench, kinds[which], precision))
            for which, of_one in errors.items()
            for precision, error in of_one.items()
        }
        if ("tuned", "int8") in found:
            rows.append(_row("quantized", "int8", found["tuned", "int8"][0], None))
        for row in rows:
            which = "original" if row["what"] == AS_IT_IS else "tuned"
            row["seconds"] = row["seconds"] or found.get((which, row["precision"]), (0, None))[1]
        which, precision = self._best(found, before)
        error, seconds = found[which, precision]
        is_gain = which == "tuned"
        best = forms[precision].prepared if is_gain else steps.prepare_again(original, precision, self.data)
        runtime, dense = steps.fastest(bench, "float32")
        int8_runtime, dense_int8 = steps.fastest(bench, "int8")
        verdict = (
            f"{dense / seconds:.2f}x faster than the fastest dense float32 ({runtime}), error "
            f"{error:.2f} % against {before['error']:.2f} %"
            if is_gain and seconds
            else "not worth converting: the fastest form of the network as it is, is kept"
        )
        if is_gain and self.goal.target_speedup and seconds and dense / seconds < self.goal.target_speedup:
            self.notes.append(f"the speed-up asked for, {self.goal.target_speedup:g}, is not reached")
        try:
            save(best, self.folder / FAST, overwrite=True, inputs=Inputs.of(self.data))
        except UserError as error_of_save:
            self.notes.append(f"{FAST}/ is not written: {error_of_save}")
        results = {
            "network": self.state.request.network,
            "data": self.state.request.data.name,
            "classes": len(self.data.classes),
            "input_size": list(self.data.input_size),
            "test_images": len(self.data.test),
            "verdict": verdict,
            "fast": {
                "network": which,
                "precision": precision,
                "error": error,
                "seconds": seconds,
                "speedup": dense / seconds if seconds else None,
                "over": runtime,
                "speedup_int8": dense_int8 / seconds if seconds and int8_runtime else None,
                "over_int8": int8_runtime,
            },
            "error_before": before["error"],
            "rows": rows,
            "settings": self.state.done["settings"],
            "goal": asdict(self.goal),
            "plan": plan.to_dict(),
            "bench": bench,
            "native_share": native_share(best, self.data),
            "notes": list(dict.fromkeys(self.notes)),
            "environment": describe_environment(self.device),
            "command": self.command(self.state),
        }
        write_atomically(self.folder / RESULTS, (json.dumps(results, indent=1) + "\n").encode())
        write_atomically(self.folder / PLAN, (json.dumps(plan.to_dict(), indent=1) + "\n").encode())
        write_report(results, self.folder / REPORT)
        return Tuned(plain(tuned or original), best, plan, results, self.folder)

    def _best(
        self, found: dict[tuple[str, Precision], tuple[float, float | None]], before: dict[str, Any]
    ) -> tuple[str, Precision]:
        """The fastest of our forms whose error is allowed."""
        drop = self.goal.max_drop
        most: dict[str, float] = {}
        for which in ("original", "tuned"):
            if (which, "float32") in found:
                own = found[which, "float32"][0]
                most[which] = before["error"] + drop if drop is not None else own + INT8_DROP
        candidates = [(which, precision, *values) for (which, precision), values in found.items()]
        return steps.pick_form(candidates, most) or ("original", "float32")


def native_share(prepared: PreparedModel, data: Data) -> float:
    """The share of a call's time that native steps take."""
    image = next(iter(data.test.batches(1, train=False)))[0]
    split = prepared.time_split(image)
    total = sum(split.values())
    return 1 - split.get("torch", 0.0) / total if total else 0.0


def _row(what: str, precision: str, error: float, seconds: float | None) -> dict[str, Any]:
    return {"what": what, "precision": precision, "error": error, "seconds": seconds}


def show_results(results: dict[str, Any]) -> Group:
    """The table of what each step cost and gained."""
    threads = results["goal"]["threads"][0]
    table = Table(box=box.SIMPLE_HEAD, title=f"{results['network']} on {results['data']}", title_justify="left")
    table.add_column("step")
    for heading in ("error", f"ms, {threads} thread{'s' * (threads > 1)}", "speed-up"):
        table.add_column(heading, justify="right")
    base = next((row["seconds"] for row in results["rows"] if row["seconds"]), None)
    for row in results["rows"]:
        ms = "" if row["seconds"] is None else f"{1e3 * row['seconds']:.2f}"
        gain = "" if row["seconds"] is None or base is None else f"{base / row['seconds']:.2f}x"
        table.add_row(Text(row["what"]), f"{row['error']:.2f} %", ms, gain)
    return Group(table, Text(results["verdict"]), *[Text(f"note: {note}") for note in results["notes"]])
