"""What is shown of a training."""

import io

from rich.console import Console

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
