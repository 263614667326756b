"""A tuning under way: each step is done once, and written down, so that it can go on from there."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..cost import count_macs
from ..data import Data, Inputs
from ..deploy import save
from ..deploy.precision import Precision
from ..environment import describe_environment
from ..errors import UserError
from ..files import write_atomically
from ..models import ImageClassifier, load_model, save_model
from ..pruning import what_is_left
from ..runs import RunFolder
from ..train.distributed import rank
from ..train.evaluate import evaluate
from . import steps
from .goal import Request, State
from .network import Opened, open_network, plain
from .planning import Plan
from .planning import plan as make_plan
from .report import write_report
from .result import Tell, Tuned, native_share, row_of
from .training import ORIGINAL, Training, Watch

TRAINING, STATIC, FAST = "training", "static", "fast"
RESULTS, PLAN, REPORT = "results.json", "plan.json", "report.html"
INT8_DROP = 0.5  # points that int8 may cost over float32, to be taken
AS_IT_IS = "the network as it is"

Command = Callable[[State], str]  # how to repeat a tuning


def open_for(request: Request, data: Data) -> Opened:
    return open_network(
        request.network,
        data.classes,
        data.input_size,
        weights=Path(request.weights) if request.weights else None,
        replace_head=request.goal.replace_head,
    )


class Process:
    """One tuning under way."""

    def __init__(self, state: State, data: Data, device: str, watch: Watch, tell: Tell, command: Command) -> None:
        self.state, self.data, self.device = state, data, torch.device(device)
        self.command, self.tell = command, tell if rank() == 0 else lambda line: None
        self.goal, self.folder = state.request.goal, state.folder
        self.notes: list[str] = state.done.get("notes", [])
        self.training = Training(state, data, self.device, self.notes, watch, self.tell)

    def run(self, dry_run: bool = False) -> Tuned:
        for note in self.notes:
            self.tell(f"note: {note}")
        self.state.step("original", self._keep_original)
        if self.state.done.get("new head"):
            self.training.train_head()
        original = load_model(self.folder / ORIGINAL)
        before = self.state.step("before", lambda: self._measure_before(original))
        plan = Plan.from_dict(self.state.step("plan", lambda: self._plan(original, before)), str(self.folder))
        self.tell(plan.summary)
        settings = self.state.step("settings", lambda: self.training.settle(original, plan, before))
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
        rows: list[dict[str, Any]] = [row_of(AS_IT_IS, "float32", before["error"], None)]
        if "int8" in before["errors"]:
            rows.append(row_of(AS_IT_IS, "int8", before["errors"]["int8"], None))
        if plan.is_worth_it:
            tuned = self._fine_tune(original, plan, settings, rows, before)
        if tuned is not None and self.goal.against == "static":
            self._against_static(original, tuned, settings, rows)
        return self._end(original, tuned, plan, before, rows)

    def _keep_original(self) -> bool:
        """A run folder of the network as it is: what is measured, what is converted, and the teacher."""
        model = open_for(self.state.request, self.data).model
        images = Inputs.of(self.data).of_images
        facts = {"input_size": self.data.input_size, "classes": self.data.classes, "images": images}
        save_model(model, self.folder / ORIGINAL, **facts)
        return True

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

    def _fine_tune(
        self,
        original: ImageClassifier,
        plan: Plan,
        settings: dict[str, Any],
        rows: list[dict[str, Any]],
        before: dict[str, Any],
    ) -> ImageClassifier | None:
        """The network converted and trained, and its batch norms measured anew."""
        options, folder = self.training.options(original, plan), self.folder / TRAINING
        share = 0.5 if self.goal.against else 1.0
        if "trained" not in self.state.done:
            self.tell("fine-tuning with a rising rate, and the network as it was as its teacher")
            is_there = self.training.train(original, "tuned", options, folder, share)
            self.state.step("trained", lambda: is_there)
        if not self.state.done["trained"] or rank() != 0:
            return None
        model = load_model(folder)
        trained = self.state.step("trained error", lambda: evaluate(model, self.data.test).error)
        rows.append(row_of(f"converted and fine-tuned, {settings['epochs']} epochs", "float32", trained, None))
        is_better = steps.measure_norms_anew(model, self.data)
        error = self.state.step("error", lambda: evaluate(model, self.data.test).error)
        what = "batch norms measured anew" if is_better else "batch norms as training left them"
        rows.append(row_of(what, "float32", error, None))
        if self.goal.max_drop is not None:
            most = before["error"] + self.goal.max_drop
            model, rate, error = steps.within_drop(model, self.data, most, error, self.tell)
            rows.append(row_of(f"at rate {rate:g}, for the allowed drop", "float32", error, None))
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

        def train() -> dict[str, Any]:
            self.tell("the same with static filter pruning, to compare")
            cost = count_macs(tuned, self.data.input_size, "paper")
            budget = round(cost.macs / cost.dense_macs, 4)
            options = {"prune": "fpgm", "prune_budget": budget}
            try:
                if not self.training.train(original, "static", options, self.folder / STATIC, 1.0):
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
            rows.append(row_of("static filter pruning (FPGM), as many MACs", precision, error, seconds))

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
            rows.append(row_of("quantized", "int8", found["tuned", "int8"][0], None))
        for row in rows:
            which = "original" if row["what"] == AS_IT_IS else "tuned"
            row["seconds"] = row["seconds"] or found.get((which, row["precision"]), (0, None))[1]
        runtime, dense = steps.fastest(bench, "float32")
        which, precision = self._best(found, before, dense)
        error, seconds = found[which, precision]
        is_gain = which == "tuned"
        best = forms[precision].prepared if is_gain else steps.prepare_again(original, precision, self.data)
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
        self, found: dict[tuple[str, Precision], tuple[float, float | None]], before: dict[str, Any], dense: float
    ) -> tuple[str, Precision]:
        """The fastest of our forms whose error is allowed; of the tuned network only where it takes less than ``dense``
        seconds, for nothing is gained otherwise."""
        drop = self.goal.max_drop
        most: dict[str, float] = {}
        for which in ("original", "tuned"):
            if (which, "float32") in found:
                own = found[which, "float32"][0]
                most[which] = before["error"] + drop if drop is not None else own + INT8_DROP
        candidates = [
            (which, precision, error, seconds)
            for (which, precision), (error, seconds) in found.items()
            if which == "original" or (seconds is not None and seconds < dense)
        ]
        return steps.pick_form(candidates, most) or ("original", "float32")
