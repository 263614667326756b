"""Progress of trainings on a terminal."""

from collections.abc import Sequence
from math import nan

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..errors import visible
from ..runs import EpochMetrics

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
        epochs, name = self.epochs[index], visible(name)
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
        if metrics.overflowing_images:
            last += f"  {metrics.overflowing_images} overflow"
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
