"""What the command line shows: progress and tables."""

from collections.abc import Sequence
from math import nan

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from .analysis.macs import MacCount
from .analysis.paper import Comparison
from .analysis.plan import Agreement, Cost, Plan
from .analysis.summary import Summary
from .models.pretrained import ModelCard
from .text import print_table
from .train import EpochMetrics, Recipe
from .train.recipe import Reported

SLOW_START = 5.0  # seconds of a first step that are worth a line


class TrainingDisplay:
    """A progress bar a network, with the figures of its last epoch; a line each tenth of the epochs."""

    def __init__(self, console: Console, epochs: Sequence[int]) -> None:
        self.epochs = epochs
        self.progress = Progress(
            TextColumn("{task.description}  epoch {task.fields[epoch]:>3}/{task.fields[epochs]}", markup=False),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  {task.fields[last]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,  # in a file, the lines of the epochs say it all
        )
        self.tasks: dict[int, TaskID] = {}
        self.names: dict[int, str] = {}

    def __enter__(self) -> "TrainingDisplay":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def start(self, index: int, name: str, steps: int, done: int) -> None:
        epochs = self.epochs[index]
        self.names[index] = name
        self.tasks[index] = self.progress.add_task(
            name,
            total=steps,
            completed=done,
            epoch=min(epochs, done * epochs // steps + 1),
            epochs=epochs,
            loss=nan,
            last="",
        )

    def first_step(self, index: int, seconds: float, compiled: bool) -> None:
        """What starting took, where it took something."""
        if compiled or seconds > SLOW_START:
            what = "compiled in" if compiled else "ready after"
            self.progress.console.print(
                f"{self._name(index)}{what} {seconds:.1f} s, the first step included", soft_wrap=True
            )

    def step(self, index: int, epoch: int, done: int, loss: float) -> None:
        epoch = min(epoch + 1, self.epochs[index])
        self.progress.update(self.tasks[index], completed=done, epoch=epoch, loss=loss)

    def epoch(self, index: int, metrics: EpochMetrics) -> None:
        epochs = self.epochs[index]
        last = f"test error {metrics.test_error:.2f} %"
        if metrics.pruned_share is not None:
            last += f"  pruned {metrics.pruned_share:.3f}"
        last += f"  {metrics.images_per_second:,.0f} images/s"
        if metrics.skipped_images:
            last += f"  {metrics.skipped_images} corrupt skipped"
        task = self.tasks[index]
        done = (self.progress.tasks[task].total or 0) * metrics.epoch / epochs
        self.progress.update(task, completed=done, epoch=metrics.epoch, loss=metrics.train_loss, last=last)
        if metrics.epoch % max(1, epochs // 10) == 0 or metrics.epoch == epochs:
            self.progress.console.print(
                f"{self._name(index)}epoch {metrics.epoch:>3}/{epochs}  loss {metrics.train_loss:.3f}  "
                f"learning rate {metrics.learning_rate:.4f}  {last}",
                soft_wrap=True,  # one line for 'grep', however long
            )

    def _name(self, index: int) -> str:
        return f"{self.names[index]}  " if len(self.epochs) > 1 else ""


def print_summary(console: Console, summary: Summary, folder: str, skipped: int = 0) -> None:
    """``skipped``: corrupt test images that were left out."""
    table = Table(title=f"{summary.model} on {summary.data}", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    table.add_column("this network", justify="right")
    table.add_column("the same, dense", justify="right")
    table.add_column("saving", justify="right")
    table.add_row(f"top-1 error, {summary.test_images} test images", f"{summary.error:.2f} %")
    if skipped:
        table.add_row("test images skipped, corrupt", str(skipped))
    if summary.pruning_rate is not None:
        table.add_row("pruning rate, measured", f"{summary.pruning_rate:.4f}", f"{0:.4f}")
    for convention, macs in summary.macs.items():
        dense = summary.dense_macs[convention]
        table.add_row(
            f"MACs an image, '{convention}' convention",
            _millions(macs),
            _millions(dense),
            f"{dense / macs:.2f}x",
        )
    table.add_row("parameters", _millions(summary.parameters))
    console.print(table)
    console.print(f"Run folder: {folder}", soft_wrap=True)


def print_macs(console: Console, name: str, count: MacCount) -> None:
    size = "x".join(map(str, count.input_size))
    table = Table(
        title=f"MACs of {name} at {size}, '{count.convention}' convention",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=False,
    )
    table.add_column("layer", no_wrap=True)
    table.add_column("kind")
    for heading in ("output", "kept", "MACs", "undivided"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in count.layers:
        kept = "" if layer.kept_share is None else f"{layer.kept_share:.3f}"
        shape = "x".join(map(str, layer.output))
        table.add_row(layer.name, layer.kind, shape, kept, _millions(layer.macs), _millions(layer.dense_macs))
    table.add_section()
    saving = f"{count.dense_macs / count.macs:.2f}x less" if count.macs < count.dense_macs else ""
    table.add_row("total", saving, "", "", _millions(count.macs), _millions(count.dense_macs))
    console.print(table)
    if any(layer.kept_share is not None for layer in count.layers) and not count.measured:
        console.print("Kept shares are those that the options of the layers say.")
    if count.uncounted:
        console.print(f"Not counted, no rule for: {', '.join(count.uncounted)}")


def print_paper_comparison(console: Console, rows: list[Comparison]) -> None:
    table = Table(title="MACs, the paper's figures and ours", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("model")
    for heading in ("reported", "'paper'", "'authors'", "difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("fits")
    for row in rows:
        difference = "" if row.difference is None else f"{row.difference:+.2f} %"
        figures = [f"{row.paper:.3f}M", f"{row.authors:.3f}M"]
        if row.paper_saving and row.authors_saving:
            table.add_row(row.label, "", *figures)
            figures = [f"{row.paper_saving:.3f}x", f"{row.authors_saving:.3f}x"]
            table.add_row("  saving over dense", row.reported, *figures, difference, row.fits)
        else:
            table.add_row(row.label, row.reported, *figures, difference, row.fits)
    console.print(table)
    console.print(
        "'paper' and 'authors' are the two ways to count, see dgconv.analysis.macs. 'fits' says which of them"
    )
    console.print("gives the reported figure; '(fit)': at a pruning rate and squeeze found by trying, no code exists.")


def print_plan(console: Console, plan: Plan) -> None:
    recipe, data, cost, memory = plan.recipe, plan.data, plan.cost, plan.memory
    table = Table(
        title=f"{recipe.run_name}: {recipe.model} on {recipe.data}",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        show_header=False,
    )
    table.add_row("parameters", _millions(cost.parameters))
    for convention, macs in cost.macs.items():
        dense = f"{_millions(cost.dense_macs[convention])} dense, {cost.saving(convention):.3f}x"
        table.add_row(f"MACs an image, '{convention}'", f"{_millions(macs)}; {dense}")
    if plan.reported:
        table.add_row("reported", _reported_line(plan.reported))
    if plan.agreement:
        line = f"'{plan.agreement.convention}' comes closest, {plan.agreement.difference:+.2f} %"
        table.add_row("our MACs against the reported", line)
    if plan.reported and plan.reported.note:
        table.add_row("note", plan.reported.note)
    sources = {"known": "", "counted": ", counted", "assumed": ", taken for ImageNet; --data-dir has them counted"}
    shape = f"{data.classes} classes, {data.side} x {data.side}"
    table.add_row("training images", f"{data.train_images:,}, {shape}{sources[data.source]}")
    steps = f"{plan.steps_per_epoch:,} an epoch, {plan.steps:,} in {recipe.epochs} epochs, batch {recipe.batch_size}"
    table.add_row("steps", steps)
    parts = f"{_mebibytes(memory.activations)} activations, {_mebibytes(memory.state)} weights, gradients, momentum"
    table.add_row("memory of a step, estimated", f"{_mebibytes(memory.total)} ({recipe.precision}: {parts})")
    table.add_row("learning rate", f"{recipe.learning_rate:g}, down to 0 along half a cosine")
    for number, stage in enumerate(plan.stages):
        table.add_row("" if number else "schedule", f"{stage.epochs:.4g} epochs: {stage.what}")
    console.print(table)


def print_recipes(console: Console, rows: list[tuple[Recipe, Reported | None, Cost, Agreement | None]]) -> None:
    columns = [
        *map(Column, ("name", "model", "data")),
        *(Column(heading, justify="right") for heading in ("epochs", "reported\nerror", "reported\nMACs", "our\nMACs")),
        Column("counted\nas"),
    ]
    lines = []
    for recipe, reported, cost, agreement in rows:
        convention = agreement.convention if agreement else "paper"
        error = macs = ""
        ours = _millions(cost.macs[convention])
        if reported:
            error = "plotted" if reported.error is None else f"{reported.error:.2f} %"
            macs = _reported_cost(reported)
        if reported and reported.saving:
            ours = f"{cost.saving(convention):.3f}x"
        lines.append([recipe.name, recipe.model, recipe.data, str(recipe.epochs), error, macs, ours, convention])
    title = "Recipes, and what the paper reports for them"
    print_table(console, title, columns, lines, less_needed=("model", "data", "epochs", "counted\nas"))
    console.print("An x is a saving over the dense network. Plotted: in a figure, without a printed number.")
    console.print("Train one with 'dgconv train NAME --data-dir DIR'; add --dry-run to see first what it takes.")


def print_weights(console: Console, cards: dict[str, ModelCard]) -> None:
    headings = ("weights", "model", "data", "top-1 error")
    rows = [[name, str(card.model["name"]), card.data, f"{card.error:.2f} %"] for name, card in cards.items()]
    columns = [Column(heading, justify="right" if heading == "top-1 error" else "left") for heading in headings]
    print_table(console, "Trained weights", columns, rows, less_needed=("data", "model"))


def _reported_line(reported: Reported) -> str:
    figures = [f"{reported.error:.2f} % error"] if reported.error is not None else []
    figures += [f"{reported.top5_error:.2f} % top-5"] if reported.top5_error is not None else []
    figures += [f"{_reported_cost(reported)} MACs"] if reported.macs is not None else []
    figures += [f"{_reported_cost(reported)} fewer MACs"] if reported.saving is not None else []
    return ", ".join(figures) + f" ({reported.where})" if figures else reported.where


def _reported_cost(reported: Reported) -> str:
    if reported.macs is not None:
        return f"{reported.macs / 1e6:g}M"
    return f"{reported.saving:.2f}x" if reported.saving is not None else ""


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"


def _millions(count: float) -> str:
    return f"{count / 1e6:.3f}M"
