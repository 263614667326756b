"""What came out of a training or an evaluation, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from ..analysis.summary import Summary, summarize
from ..deploy.precision import Precision
from ..train import FinishedRun
from ._output import console, millions, show_each


def show_results(results: Sequence[FinishedRun], device: str, json: bool, precision: Precision = "float32") -> None:
    def summary_of(result: FinishedRun) -> tuple[Summary, str, dict[str, int]]:
        evaluation = result.evaluation
        summary = summarize(
            result.model, result.data, error=evaluation.error, pruning_rate=evaluation.pruned_share, device=device
        )
        odd = {"skipped_images": evaluation.skipped, "overflowing_images": len(evaluation.overflowing)}
        told = {name: count for name, count in odd.items() if count}
        summary = replace(summary, test_images=evaluation.images, precision=precision)
        return summary, str(result.folder), told

    show_each(
        [summary_of(result) for result in results],
        json,
        lambda shown: {"run": shown[1], **shown[0].to_dict(), **shown[2]},
        lambda shown: print_summary(console, *shown),
    )


ODD = {"skipped_images": "test images skipped, corrupt", "overflowing_images": "test images that overflow, wrong"}


def print_summary(console: Console, summary: Summary, folder: str, odd: Mapping[str, int]) -> None:
    """``odd``: how many test images are not as the others, by name."""
    table = Table(title=f"{summary.model} on {summary.data}", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    table.add_column("this network", justify="right")
    table.add_column("the same, dense", justify="right")
    table.add_column("saving", justify="right")
    in_int8 = ", int8" if summary.precision == "int8" else ""
    table.add_row(f"top-1 error, {summary.test_images} test images{in_int8}", f"{summary.error:.2f} %")
    for name, count in odd.items():
        table.add_row(ODD[name], str(count))
    if summary.pruning_rate is not None:
        table.add_row("pruning rate, measured", f"{summary.pruning_rate:.4f}", f"{0:.4f}")
    for convention, macs in summary.macs.items():
        dense = summary.dense_macs[convention]
        table.add_row(
            f"MACs an image, '{convention}' convention",
            millions(macs),
            millions(dense),
            f"{dense / macs:.2f}x",
        )
    table.add_row("parameters", millions(summary.parameters))
    console.print(table)
    console.print(f"Run folder: {folder}", soft_wrap=True)
