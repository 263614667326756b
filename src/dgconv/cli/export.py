"""The command that writes a trained network for other programs."""

from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from ..analysis.predict import known_inputs
from ..analysis.rate import RANGE_IMAGES, calibration_images
from ..analysis.trained_run import open_runs
from ..deploy.export.formats import Exported, Format, check_precision, export_run
from ..deploy.precision import Precision
from ..errors import UserError
from ..files import check_file
from ..models.pretrained import find_run
from ._output import console, show


def export(
    run: Positional[Path],
    out: Path,
    format: Format | None = None,
    precision: Precision = "float32",
    freeze: bool = False,
    data_dir: str | None = None,
    json: bool = False,
) -> None:
    """Write a trained network for other programs or as deploy.load takes it, for batches of any size.

    onnx: standard operations, which multiply every channel, the left out ones by zero: right, but no faster.
    torch, aoti: for torch.export.load and torch._inductor.aoti_load_package, after 'import dgconv'.
    prepared: for dgconv.deploy.load, fast on any CPU; the one that int8 has.

    Args:
        run: Run folder, or the name of published weights.
        out: File to write: .onnx, or .pt2 for torch and aoti; for prepared a folder.
        format: What to write; default onnx, of int8 prepared.
        precision: int8 takes the ranges of numbers from some training images of the run's data set.
        freeze: Of prepared: fix the choices that are the same of all those images, and are then not made anew.
        data_dir: Folder of the data set, if it is no longer where it was.
        json: Print JSON instead of lines.
    """
    check_file(out)
    format = format or ("onnx" if precision == "float32" and not freeze else "prepared")
    check_precision(precision, format, freeze)
    found, calibration = find_run(run), None
    if precision == "int8" or freeze:
        (trained,) = open_runs([found.path], data_dir)
        calibration = calibration_images(trained.data.train, count=RANGE_IMAGES)
    elif data_dir is not None:
        raise UserError("only int8 and `freeze` look at images: leave `data_dir` out, or set `precision`")
    inputs = known_inputs(found, data_dir, name=str(run)) if format == "prepared" else None
    exported = export_run(
        found, out, format, precision=precision, calibration=calibration, inputs=inputs, freeze=freeze
    )
    show(exported.to_dict(), json, lambda _: print_export(console, exported))


def print_export(console: Console, exported: Exported) -> None:
    size = "x".join(map(str, exported.input_size))
    console.print(
        f"{exported.file}: {exported.format}, {exported.precision}, {exported.bytes / 1e6:.1f} MB, "
        f"images {size}, batches of any size. Checked: differs from the network by {exported.difference:.1g} of the "
        "largest logit.",
        soft_wrap=True,
    )
    if exported.note:
        console.print(f"{exported.note}.", soft_wrap=True)
