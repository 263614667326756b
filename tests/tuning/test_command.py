"""The command: a folder of images and a network in a file."""

import json

import pytest
from PIL import Image

from dgconv.cli import main
from dgconv.models.others import _ALLOWED
from tests.tuned_networks import CLASSES, of_norms, pixels_and_labels

CODE = "from tests.tuned_networks import network\n"
SETTINGS = ("--image-size", "12", "--epochs", "1", "--batch-size", "16", "--workers", "0", "--time", "5")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Without any to test on."""
    root = tmp_path_factory.mktemp("photos")
    for number, (image, label) in enumerate(zip(*pixels_and_labels(90, seed=1), strict=True)):
        folder = root / "train" / CLASSES[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("code") / "net.py"
    path.write_text(CODE)
    return f"{path}:network"


@pytest.mark.slow
def test_from_photos_to_a_fast_network(photos, network, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["tune", network, "--data-dir", str(photos), *SETTINGS, "--out", "run"])
    told = capsys.readouterr().out
    assert "a fifth of the training images" in told
    assert "the network as it is" in told
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results["test_images"] == 18
    assert results["command"].startswith(f"dgconv tune {network}")
    assert (tmp_path / "run/report.html").stat().st_size > 10_000
    main(["predict", "run/fast", str(photos / "train" / CLASSES[0] / "0.png"), "--json"])
    assert json.loads(capsys.readouterr().out)["answered"] == 1
    main(["eval", "run", "--json"])
    rows = {row["what"]: row["error"] for row in results["rows"]}
    assert json.loads(capsys.readouterr().out)["error"] == pytest.approx(of_norms(rows), abs=1e-3)

    monkeypatch.setitem(_ALLOWED, network, None)
    del _ALLOWED[network]
    assert refused("tune", "--resume", "run") == 2
    assert "not run because a file names it" in capsys.readouterr().err
    main(["tune", network, "--resume", "run", "--json"])
    assert json.loads(capsys.readouterr().out)["rows"] == results["rows"]


def test_a_dry_run_leaves_nothing(photos, network, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["tune", network, "--data-dir", str(photos), *SETTINGS, "--dry-run"])
    told = capsys.readouterr().out
    assert "become dynamic at rate 0.75" in told
    assert "Estimated" in told
    assert not list(tmp_path.iterdir())


def refused(*arguments):
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return end.value.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a network"),
        (["--resume", "nowhere"], "no tuning was begun in it"),
        (["resnet20", "--data", "digits", "--target-speedup", "2", "--pruning-rate", "0.5"], "not both"),
        (["resnet20", "--data", "digits", "--time", "-1"], "--time"),
        (["resnet20", "--data", "digits", "--weights", "no.pt"], "no such file"),
        (["resnet20", "--data", "digits", "--plan", "no.json"], "--plan takes the plan.json"),
        (["resnet20", "--dry-run", "--resume", "nowhere"], "--dry-run"),
    ],
)
def test_mistakes_end_with_words_and_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("tune", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_one_class(tmp_path, capsys):
    folder = tmp_path / "train" / "only"
    folder.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (12, 12), (number * 20, 0, 0)).save(folder / f"{number}.png")
    assert refused("tune", "resnet20", "--data-dir", str(tmp_path), "--image-size", "32", "--workers", "0") == 2
    assert "one class only" in capsys.readouterr().err
