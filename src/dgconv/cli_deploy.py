"""The commands about networks in use: export and bench."""

import json as json_format
import sys
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from .cli_output import console, make_console, show
from .writable import check_file


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
    from .deploy.export import export_run
    from .display_deploy import print_export
    from .models.pretrained import find_run

    check_file(out)
    exported = export_run(find_run(run), out, format)
    show(exported.to_dict(), json, lambda _: print_export(console, exported))


def bench(
    model: Positional[str],
    batch_sizes: tuple[int, ...] = (1,),
    threads: tuple[int, ...] = (),
    pruning_rate: float | None = None,
    input_size: tuple[int, int, int] | None = None,
    repeats: int | None = None,
    compile: bool = False,
    json: Path | None = None,
    picture: Path | None = None,
) -> None:
    """Measure how long a network takes on this CPU: dense, with standard and with dynamic group convolution.

    In torch, ONNX Runtime and OpenVINO (where installed), and prepared by dgconv. Weights are random, but for a run.

    Args:
        model: Name of a model or recipe, a .toml file, or a run folder.
        batch_sizes: Images at a time.
        threads: Numbers of threads; default 1 and all cores.
        pruning_rate: Share of the input channels each head leaves out.
        input_size: Channels, height, width; default as the model is trained.
        repeats: Timed calls of each form; default as many as 8 seconds hold, at least 5.
        compile: Measure torch.compile too, which takes a minute or more to compile.
        json: File to write all figures to.
        picture: File to draw them into: .png, .svg or .pdf.
    """
    from .deploy.bench import run_bench
    from .deploy.bench_networks import find_networks
    from .deploy.bench_picture import check_picture, draw_bench
    from .display_deploy import bench_progress, print_bench
    from .models.storage import write_atomically

    for file in filter(None, (json, picture)):
        check_file(file)
    if picture:
        check_picture(picture)
    with bench_progress(make_console(stderr=True)) as tell:
        networks = find_networks(model, pruning_rate=pruning_rate, input_size=input_size)
        measured = run_bench(
            networks, batch_sizes=batch_sizes, threads=threads, repeats=repeats, compile=compile, tell=tell
        )
    for warning in measured.warnings:
        print(f"dgconv: warning: {warning}", file=sys.stderr)
    print_bench(console, measured)
    if json:
        write_atomically(json, (json_format.dumps(measured.to_dict(), indent=2) + "\n").encode())
    if picture:
        draw_bench(measured, picture)
