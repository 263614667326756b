"""What is shown of a training, and tables in terminals of any width."""

import io
import shutil
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest
from rich.console import Console

from dgconv.analysis.paper import CountedFigure
from dgconv.bench.result import Bench, FormTime, Measurement
from dgconv.cli import main
from dgconv.cli._display import TrainingDisplay
from dgconv.cli.macs import print_paper_comparison
from dgconv.train import Recipe, train
from dgconv_command import list_commands
from reproduce import commands
from reproduce.checkout import Checkout
from reproduce.rows import all_rows


def test_in_a_file_an_epoch_is_one_line_and_there_is_no_bar(tmp_path):
    file = io.StringIO()
    recipe = Recipe.of(name="digits", stages=(1,), growth=(4,), image_size=8, epochs=2, batch_size=256)
    with TrainingDisplay(Console(file=file, width=40), [recipe.training.epochs]) as display:
        train(recipe, tmp_path / "run", watcher=display)
    lines = file.getvalue().splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]]
    assert all(line.endswith(" images/s") for line in lines)


def test_a_path_is_shown_as_it_is(head_folder, tmp_path, capsys):
    """Rich has marks of its own, such as [b] and :x:, and stumbles over [/b] without a [b] before."""
    for name in ("runs [b] :x:", "[/b]"):
        run = tmp_path / name
        run.parent.mkdir(exist_ok=True)  # [/b] is two folders
        shutil.copytree(head_folder, run)
        main(["eval", str(run)])
        assert f"Run folder: {run}\n" in capsys.readouterr().out


def lines_at(width, show):
    """What ``show`` prints to a terminal of that width; no line is longer and no cell is cut."""
    file = io.StringIO()
    show(Console(file=file, width=width, force_terminal=True, color_system=None))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in file.getvalue()
    return lines


def test_results_in_a_narrow_terminal(monkeypatch):
    rows = all_rows(Checkout(Path(__file__).parents[2]).groups)

    def show(console):
        monkeypatch.setattr(commands, "console", console)
        commands._print_rows(rows)

    recipe = "cifar10_condensenet50_dgc_rate33 "
    row = next(row for row in rows if row.title.strip("`") == recipe.strip())
    for width in (80, 120, 200):
        (line,) = (line for line in lines_at(width, show) if line.startswith(f" {recipe}"))
        assert row.error in line
        assert (row.seeds in line) == (width > 80)
    assert lines_at(80, show)[-1] == "Left out, as the terminal is too narrow: seeds; MACs, 'authors'; epochs."


def test_recipes_in_a_narrow_terminal(monkeypatch):
    def show(console):
        monkeypatch.setattr("dgconv.cli.recipes.console", console)
        main(["recipes", "cifar10_*"])

    for width, left_out in ((80, ["model", "data", "epochs"]), (110, ["model"]), (120, [])):
        lines = lines_at(width, show)
        (line,) = (line for line in lines if line.startswith(" cifar10_condensenet50_dgc_rate33 "))
        assert {"5.83", "51M", "50.994M"} <= set(line.split())
        told = f"Left out, as the terminal is too narrow: {'; '.join(left_out)}."
        assert (told in lines) == bool(left_out)


def test_what_a_recipe_is_counted_as_is_shown_in_80_columns(monkeypatch):
    def show(console):
        monkeypatch.setattr("dgconv.cli.recipes.console", console)
        main(["recipes"])

    lines = lines_at(80, show)
    assert any(line.split()[-1:] == ["counted"] for line in lines)
    assert any(line.split()[-2:] == ["50.994M", "authors"] for line in lines)


def test_the_paper_in_a_narrow_terminal():
    row = CountedFigure(
        "table",
        "CondenseNet-74 LGC, half classifier",
        "in a figure",
        1814.073,
        1818.214,
        None,
        None,
        0.1,
        "both",
        "",
    )
    lines = lines_at(80, lambda console: print_paper_comparison(console, [row]))
    text = " ".join(" ".join(lines).split())
    assert "CondenseNet-74 LGC," in text
    assert "half classifier" in text
    assert {"1814.073M", "1818.214M", "+0.10"} <= set(text.split())


def test_help_fits_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("bench", "train"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        described = [line for line in capsys.readouterr().out.splitlines() if line[:1] not in ("│", "╭", "╰")]
        assert max(map(len, described)) <= 80


def test_json_is_a_switch_in_every_command():
    for name in list_commands():
        module = import_module(f"dgconv.cli.{name.replace('-', '_')}")
        kinds = {n: p.annotation for n, p in signature(getattr(module, name.replace("-", "_"))).parameters.items()}
        assert kinds.get("json", bool) is bool, name


def test_other_options_in_the_paper_are_told(capsys):
    main(["macs", "resnet18_dgc", "--convention", "authors"])
    told = " ".join(capsys.readouterr().out.split())
    assert "'dgconv macs --paper' counts 'ResNet-18-DGC, rate 0.55' with pre_norm=True" in told


def test_a_benchmark_in_a_narrow_terminal():
    rows = [FormTime("dgc", "prepared", median=0.01201, quartiles=(0.0089512, 0.1201234), speedup=1.25)]
    measurements = [Measurement(1, threads, 5, rows, {"convolution": 0.01}) for threads in (1, 2)]
    bench = Bench("resnet20_dgc", 0.75, (3, 32, 32), {"hardware": "a CPU"}, measurements, [])
    for width, tables in ((80, 2), (120, 1)):
        lines = lines_at(width, lambda console: console.print(bench.tables(console.width)))
        assert sum(line.startswith("resnet20_dgc at 3x32x32") for line in lines) == tables
        text = "\n".join(lines)
        assert text.count("12.01") == text.count("8.95-120.12") == text.count("1.25x") == text.count("100 %") == 2
