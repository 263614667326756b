"""Training on a data set with broken files in it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from processes import run_dgconv
from safetensors.torch import load_file
from trained_runs import stop_after

from dgconv.cli import main
from dgconv.errors import UserError
from dgconv.train import Recipe, evaluate, resume, train
from dgconv.train.run import Run

SMALL = {"stages": (1, 1), "growth": (4, 8), "image_size": 16, "batch_size": 4, "epochs": 2, "workers": 0}


@pytest.fixture
def photos(tmp_path):
    """Twelve training and six test images in two classes; two and one of them cut short."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 3)):
        for shade, name in ((0, "dark"), (128, "light")):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                image = Image.fromarray((shade + rng.integers(0, 128, (20, 20, 3))).astype(np.uint8))
                image.save(tmp_path / "photos" / split / name / f"{number}.{'jpg' if number % 2 else 'png'}")
    for bad in ("train/dark/1.jpg", "train/light/4.png", "test/light/2.png"):
        path = tmp_path / "photos" / bad
        path.write_bytes(path.read_bytes()[:400])
    return tmp_path / "photos"


def recipe_for(photos, **options):
    return Recipe.of(**SMALL | {"data": "folder", "data_dir": str(photos), "skip_corrupt_images": True} | options)


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_skipped_images_are_counted_and_not_evaluated(photos, tmp_path, caplog):
    result = train(recipe_for(photos), tmp_path / "run")
    assert (result.evaluation.images, result.evaluation.skipped) == (5, 1)
    assert [line["skipped_images"] for line in metrics_of(tmp_path / "run")] == [3, 3]
    named = [text for text in caplog.messages if "skipped" in text]
    assert len(named) == 3
    (photos / "test/light/2.png").unlink()
    without = evaluate(result.model, recipe_for(photos).load_data().test)
    assert (without.error, without.images, without.skipped) == (result.evaluation.error, 5, 0)


def test_nothing_left_to_evaluate_on(photos):
    for path in photos.glob("test/*/*"):
        path.write_bytes(path.read_bytes()[:400])
    recipe = recipe_for(photos)
    with pytest.raises(UserError, match="all 6 images to evaluate on are corrupt"):
        evaluate(recipe.build_model(2), recipe.load_data().test)


def test_a_run_stopped_in_mid_epoch_counts_on(photos, tmp_path):
    recipe = recipe_for(photos)
    train(recipe, tmp_path / "whole")
    for steps in (0, 1, 2, 4):
        folder = tmp_path / str(steps)
        stop_after(steps, recipe, folder, recipe.load_data())
        resume(folder)
        assert [line["skipped_images"] for line in metrics_of(folder)] == [3, 3], steps
        weights = load_file(folder / "model.safetensors")
        expected = load_file(tmp_path / "whole" / "model.safetensors")
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_run_that_a_corrupt_image_stopped_goes_on_without_it(photos, tmp_path):
    bad = {path: path.read_bytes() for path in (photos / "train/dark/1.jpg", photos / "train/light/4.png")}
    for path in bad:
        Image.new("RGB", (20, 20)).save(path)
    (photos / "test/light/2.png").unlink()
    recipe = recipe_for(photos, skip_corrupt_images=False)
    run = Run(recipe, tmp_path, recipe.load_data(), torch.device("cpu"))
    advance = run.advance()
    while next(advance) is None:
        pass
    run.writer.wait()
    for path, content in bad.items():
        path.write_bytes(content)
    with pytest.raises(UserError, match="`skip_corrupt_images`"):
        resume(tmp_path)
    main(["train", "--resume", str(tmp_path), "--skip-corrupt-images"])
    assert [line["skipped_images"] for line in metrics_of(tmp_path)] == [None, 2]


@pytest.mark.slow
def test_the_command_line_says_which_and_how_many(photos, tmp_path):
    small = ["--stages", "1", "--growth", "4", "--image-size", "16", "--epochs", "1", "--batch-size", "4"]
    options = ["--data", "folder", "--data-dir", str(photos), "--workers", "2", *small]

    code, _, told = run_dgconv("train", *options, "--out", "stopped", folder=tmp_path)
    assert code == 2
    assert "--skip-corrupt-images" in told
    assert "Traceback" not in told
    assert not (tmp_path / "stopped").exists(), "nothing is in the way of the next attempt"
    code, shown, told = run_dgconv("train", *options, "--out", "run", "--skip-corrupt-images", folder=tmp_path)
    assert code == 0, told
    assert told.count("image skipped: cannot read the image in") == 3
    assert str(photos / "test" / "light" / "2.png") in told
    assert "3 corrupt skipped" in shown
    assert "top-1 error, 5 test images" in shown
    assert "test images skipped, corrupt" in shown
    code, shown, _ = run_dgconv("eval", "run", "--json", folder=tmp_path)
    assert json.loads(shown)["skipped_images"] == 1
