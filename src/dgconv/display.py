"""What the command line shows: progress and tables."""

from types import TracebackType

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from .analysis.macs import MacCount
from .analysis.paper import Comparison
from .analysis.summary import Summary
from .train.engine import EpochMetrics


class TrainingDisplay:
    """One progress bar over all steps, with the figures of the last epoch; a line each tenth of the epochs."""

    def __init__(self, console: Console, epochs: int) -> None:
        self.epochs = epochs
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]:>3}/" + str(epochs)),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  {task.fields[last]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task: TaskID | None = None

    def __enter__(self) -> "TrainingDisplay":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def start(self, steps: int) -> None:
        self.task = self.progress.add_task("train", total=steps, epoch=1, loss=float("nan"), last="")

    def step(self, epoch: int, step: int, loss: float) -> None:
        assert self.task is not None
        self.progress.update(self.task, completed=step, epoch=epoch + 1, loss=loss)

    def epoch(self, metrics: EpochMetrics) -> None:
        assert self.task is not None
        last = f"test error {metrics.test_error:.2f} %"
        if metrics.pruned_share is not None:
            last += f"  pruned {metrics.pruned_share:.3f}"
        self.progress.update(self.task, last=last)
        if metrics.epoch % max(1, self.epochs // 10) == 0 or metrics.epoch == self.epochs:
            self.progress.console.print(
                f"epoch {metrics.epoch:>3}/{self.epochs}  loss {metrics.train_loss:.3f}  "
                f"learning rate {metrics.learning_rate:.4f}  {last}"
            )


def print_summary(console: Console, summary: Summary, folder: str) -> None:
    table = Table(title=f"{summary.model} on {summary.data}", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    table.add_column("this network", justify="right")
    table.add_column("the same, dense", justify="right")
    table.add_column("saving", justify="right")
    table.add_row(f"top-1 error, {summary.test_images} test images", f"{summary.error:.2f} %")
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
        console.print("Kept shares are those of the pruning rate.")
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


def _millions(count: float) -> str:
    return f"{count / 1e6:.3f}M"
