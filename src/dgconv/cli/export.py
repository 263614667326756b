"""The command that writes a trained network for other programs."""

from pathlib import Path
from typing import Literal

from rich.console import Console
from tyro.conf import Positional

from ..deploy.export.formats import Exported, export_run
from ..files import check_file
from ..models.pretrained import find_run
from ._output import console, show


def export(
    run: Positional[Path], out: Path, format: Literal["onnx", "torch", "aoti"] = "onnx", json: bool = False
) -> None:
    """Write a trained network for other programs, for batches of any size.

    onnx: standard operations, which multiply every channel, the left out ones by zero: right, but no faster.
    torch, aoti: for torch.export.load and torch._inductor.aoti_load_package, after 'import dgconv'.

    Args:
        run: Run folder, or the name of published weights.
        out: File to write: .onnx, or .pt2 for torch and aoti.
        format: What to write.
        json: Print JSON instead of lines.
    """
    check_file(out)
    exported = export_run(find_run(run), out, format)
    show(exported.to_dict(), json, lambda _: print_export(console, exported))


def print_export(console: Console, exported: Exported) -> None:
    size = "x".join(map(str, exported.input_size))
    console.print(
        f"{exported.file}: {exported.format}, {exported.bytes / 1e6:.1f} MB, images {size}, batches of any size. "
        f"Checked: differs from the network by {exported.difference:.1g} of the largest logit.",
        soft_wrap=True,
    )
    if exported.note:
        console.print(f"{exported.note}.", soft_wrap=True)
