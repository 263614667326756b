"""What is shown of a training."""

import io
import shutil

from rich.console import Console

from dgconv.cli import main
from dgconv.display import TrainingDisplay
from dgconv.train import Recipe, train


def test_in_a_file_an_epoch_is_one_line_and_there_is_no_bar(tmp_path):
    file = io.StringIO()
    recipe = Recipe(name="digits", stages=(1,), growth=(4,), image_size=8, epochs=2, batch_size=256)
    with TrainingDisplay(Console(file=file, width=40), [recipe.epochs]) as display:
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
