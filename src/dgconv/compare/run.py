"""Trains every method by one recipe at one budget, and measures what came out."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..analysis.figures.style import check_matplotlib
from ..analysis.summary import MEASURED_IMAGES
from ..bench.timing import describe_machine
from ..cost import count_macs, count_macs_by_convention, needs_images
from ..data import find_data
from ..data.load import refuse_unused_folder
from ..data.sample import sample
from ..environment import one_thread
from ..errors import UserError, unknown_name
from ..models import create_model
from ..models._registry import list_backbones
from ..runs import RunFolder
from ..train import FinishedRun, Recipe, train_all
from ..train.side_by_side import Silent, Watcher
from ..values import SHARE
from .budget import TOLERANCE, options_for_budget
from .latency import AGREE, Latency, measure_latencies
from .methods import DENSE, Rival, as_it_runs, find_rivals
from .picture import draw_comparison
from .table import PICTURE, Comparison, MethodResult, SeedResult, write_comparison

TIMED_IMAGES = 16
WatcherFor = Callable[[list[int]], AbstractContextManager[Watcher]]  # of runs with these numbers of epochs


@dataclass(frozen=True)
class CompareSettings:
    """What to compare. None means the default for the data set, or for the backbone."""

    backbone: str = "resnet20"
    methods: str = ""  # separated by commas; all
    data: str = "digits"
    data_dir: str | None = None
    budget: float = 0.5
    seeds: tuple[int, ...] = (0,)
    epochs: int | None = None
    batch_size: int = 64
    learning_rate: float = 0.05  # at 0.1 FBS diverges
    clip_gradients: float = 5.0  # now and then one of FBS is a thousand times as long as the others
    image_size: int | None = None
    width: float | None = None
    precision: str = "float32"

    @property
    def shared(self) -> dict[str, Any]:
        """The settings that all recipes have in common."""
        defaults = find_data(self.data).short_training
        return {
            "data": self.data,
            "data_dir": self.data_dir,
            "image_size": defaults.get("image_size") if self.image_size is None else self.image_size,
            "width": self.width,
            "epochs": self.epochs if self.epochs is not None else defaults.get("epochs", 30),
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "clip_gradients": self.clip_gradients,
            "precision": self.precision,
        }

    @property
    def backbone_options(self) -> dict[str, Any]:
        if self.width is None:
            return {}
        return {"width": int(self.width) if float(self.width).is_integer() else self.width}


def unwatched(epochs: list[int]) -> AbstractContextManager[Watcher]:
    return nullcontext(Silent())


@dataclass(frozen=True)
class PlannedRun:
    rival: Rival
    options: dict[str, Any]  # of the recipe, chosen for the budget
    recipe: Recipe
    folder: Path

    @property
    def is_begun(self) -> bool:
        return RunFolder(self.folder).has_checkpoint


def plan_comparison(settings: CompareSettings, folder: Path) -> list[PlannedRun]:
    """All that can be wrong is said here, before anything is trained."""
    if settings.backbone not in list_backbones():
        raise unknown_name("backbone", settings.backbone, list_backbones())
    RunFolder(folder).refuse_for_several()
    SHARE.check("budget", settings.budget)
    if not settings.seeds:
        raise UserError("`seeds` must be at least one, got none")
    if len(set(settings.seeds)) < len(settings.seeds):
        raise UserError(f"`seeds` must differ from each other, got {' '.join(map(str, settings.seeds))}")
    refuse_unused_folder(settings.data_dir, [settings.data])
    side = Recipe.of(model=settings.backbone, **settings.shared).data.facts().side
    check_matplotlib()
    rivals = find_rivals(settings.methods)
    with one_thread():  # an image or two: where other processes use the cores, more threads wait for each other
        options = {
            rival.name: options_for_budget(
                rival.name, settings.backbone, settings.budget, (3, side, side), **settings.backbone_options
            )
            for rival in rivals
        }
    return _plan_runs(settings, rivals, options, folder)


def _plan_runs(
    settings: CompareSettings, rivals: list[Rival], options: dict[str, dict[str, Any]], folder: Path
) -> list[PlannedRun]:
    """A run for each method and seed; the recipes differ in the method alone, whose ``options`` are chosen already.

    A run in ``folder`` that was begun with another recipe is refused: its figures would not belong into this table.
    """
    runs = []
    for rival in rivals:
        for seed in settings.seeds:
            chosen, model = options[rival.name], rival.model_name(settings.backbone)
            recipe = Recipe.of(rival.name, model=model, seed=seed, **settings.shared, **chosen)
            run = PlannedRun(rival, chosen, recipe, folder / f"{rival.name}-seed{seed}")
            if run.is_begun:
                _check_same_recipe(run)
            runs.append(run)
    return runs


def _check_same_recipe(run: PlannedRun) -> None:
    begun = Recipe.from_dict(RunFolder(run.folder).checkpoint.recipe, str(run.folder))
    if differences := begun.refused_on_resume(run.recipe):
        raise UserError(
            f"{run.folder} holds a run of another recipe: {'; '.join(differences)}. "
            "Name another folder with `out`, or ask for what is there"
        )


def compare(
    settings: CompareSettings, folder: Path, *, device: str = "cpu", watchers: WatcherFor = unwatched
) -> Comparison:
    """Train, or go on with, or reuse, a run for each method and seed in ``folder``; write the table and the picture."""
    runs = plan_comparison(settings, folder)
    results = _train_runs(runs, device, watchers)
    data = results[runs[0].folder].data
    images = next(sample(data.test, MEASURED_IMAGES))
    forms = {run.folder: as_it_runs(results[run.folder].model) for run in runs}
    first = {run.rival.name: forms[run.folder] for run in reversed(runs)}  # of the first seed
    latencies, machine = measure_latencies(first, images[:TIMED_IMAGES]), describe_machine()
    dense = create_model(settings.backbone, num_classes=len(data.classes), **settings.backbone_options)
    dense_macs = count_macs(dense, data.input_size).macs
    methods = []
    for rival in dict.fromkeys(run.rival for run in runs):
        own = [run for run in runs if run.rival == rival]
        seeds = [_measure(run, results[run.folder], forms[run.folder], images) for run in own]
        methods.append(_summarize(rival, own, seeds, dense_macs, settings.budget, latencies[rival.name]))
    told = asdict(settings) | settings.shared | {"seeds": list(settings.seeds), "input_size": list(data.input_size)}
    del told["data_dir"]  # means nothing to anybody else
    comparison = Comparison(told, machine, methods)
    write_comparison(comparison, folder)
    draw_comparison(comparison, folder / PICTURE)
    return comparison


def _train_runs(runs: list[PlannedRun], device: str, watchers: WatcherFor) -> dict[Path, FinishedRun]:
    """Finish what was begun, and begin what was not; what is finished is only evaluated again."""
    jobs = [(run.recipe, run.folder) for run in runs]
    with watchers([run.recipe.training.epochs for run in runs]) as watcher:
        results = train_all(jobs, device=device, watcher=watcher, resuming="begun")
    return {result.folder: result for result in results}


def _measure(run: PlannedRun, result: FinishedRun, form: nn.Module, images: Tensor) -> SeedResult:
    counted_on = images if needs_images(form) else None
    counts = count_macs_by_convention(form, tuple(images.shape[1:]), counted_on)
    return SeedResult(
        seed=run.recipe.training.seed,
        error=result.evaluation.error,
        macs={convention: count.macs for convention, count in counts.items()},
        parameters=sum(parameter.numel() for parameter in form.parameters()),
        run=run.folder.name,
    )


def _summarize(
    rival: Rival, runs: list[PlannedRun], seeds: list[SeedResult], dense_macs: float, budget: float, latency: Latency
) -> MethodResult:
    share = sum(seed.macs["paper"] for seed in seeds) / len(seeds) / dense_macs
    notes = [budget_note(share, budget, rival.name)]
    if latency.native < 1:
        notes.append(f"{100 - 100 * latency.native:.0f} % of its steps left to torch")
    if not latency.disagreement <= AGREE:
        notes.append(f"the timed form differs from the trained one by {latency.disagreement:.1g} of the largest logit")
    return MethodResult(
        method=rival.name,
        title=rival.title,
        how_it_runs=rival.how_it_runs,
        options=runs[0].options,
        seeds=seeds,
        share=share,
        note="; ".join(filter(None, notes)),
        latency_ms=1e3 * latency.median,
        latency_quartiles_ms=(1e3 * latency.quartiles[0], 1e3 * latency.quartiles[1]),
        native_share=latency.native,
    )


def budget_note(share: float, budget: float, method: str) -> str:
    """Empty where the budget was met."""
    if method == DENSE or abs(share - budget) <= TOLERANCE:
        return ""
    return f"off the budget: {100 * share:.1f} % of the MACs instead of {100 * budget:g} %"
