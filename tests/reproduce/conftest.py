"""A small checkout of its own, and runs of which only the small files exist, written as the trainer writes them."""

import json

import pytest

from dgconv.runs import RunFolder
from dgconv.train.recipe_files import load_recipe
from reproduce.checkout import Checkout

ENVIRONMENT = {"hardware": "a GPU", "threads": 1, "torch": "2.0", "date": "2020-01-01"}


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / "checkout"
    (root / "results").mkdir(parents=True)
    (root / "README.md").write_text("# Title\n\n<!-- begin: results -->\nold\n<!-- end: results -->\n\nThe end.\n")
    return Checkout(root)


@pytest.fixture
def write_run(tmp_path):
    """Writes a run of a recipe that ended with an error, or did only some of its epochs."""

    def write(folder, error, name="digits", done=None, seconds=60.0, pruned_share=0.7, **changes):
        recipe = load_recipe(name).changed(data_dir="/secret/place", **changes)
        folder, done = tmp_path / folder, recipe.training.epochs if done is None else done
        folder.mkdir(parents=True)
        extra = {"recipe": recipe.to_dict(), "input_size": (3, 32, 32), "epochs_done": done}
        RunFolder(folder).write_config(recipe.build_model(10).config, **extra, environment=ENVIRONMENT)
        errors = [*(90 - epoch / 1000 for epoch in range(done - 1)), error]
        every = {"seconds": seconds, "pruned_share": pruned_share, "first_step_seconds": None}
        lines = [{"epoch": epoch, "test_error": value, **every} for epoch, value in enumerate(errors, start=1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return write


@pytest.fixture
def add(checkout, write_run):
    """Writes a run and adds its record to the checkout."""
    from reproduce.record import add_record

    count = 0

    def write_and_add(error, **how):
        nonlocal count
        count += 1
        return add_record(write_run(f"run{count}", error, **how), checkout.results, unfinished=True)

    return write_and_add
