"""Published weights: a trained network goes out with its card and comes back as it was."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

import dgconv
from dgconv.cli import main
from dgconv.errors import UserError
from dgconv.models import load_model
from dgconv.models.pretrained import find_run, list_cards, weights_folder
from dgconv.runs import RunFolder
from dgconv.train import Recipe, train
from reproduce import publish as publishing
from reproduce.__main__ import main as reproduce
from reproduce.checkout import Checkout
from reproduce.publish import publish
from reproduce.record import Record, add_record

SMALL = {"name": "tiny", "stages": (1, 1), "growth": (4, 8), "epochs": 1, "batch_size": 256, "seed": 3}
OPTIONS = {"stages": (1, 1), "growth": (4, 8)}


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train(Recipe.of(**SMALL), folder)
    return folder


@pytest.fixture
def published(tiny_run, checkout, monkeypatch):
    """The checkout with the weights of the tiny run, where dgconv looks for weights."""
    add_record(tiny_run, checkout.results)
    publish(tiny_run, checkout)
    monkeypatch.setenv("DGCONV_WEIGHTS", str(checkout.weights))
    return checkout


@pytest.mark.slow
def test_comes_back_as_it_was(published, tiny_run):
    x = torch.randn(4, 3, 32, 32)
    expected = load_model(tiny_run)(x)
    for options in ({}, {"num_classes": 10}, OPTIONS):
        model = dgconv.create_model("condensenet20_dgc", pretrained=True, **options)
        assert model.training, "as every new model"
        torch.testing.assert_close(model.eval()(x), expected, rtol=0, atol=0)
    assert model.config == {"name": "condensenet20_dgc", "num_classes": 10, "stages": [1, 1], "growth": [4, 8]}
    by_name = dgconv.create_model("condensenet20_dgc", pretrained="tiny").eval()
    torch.testing.assert_close(by_name(x), expected, rtol=0, atol=0)
    assert dgconv.list_models(pretrained=True) == ["condensenet20_dgc"]
    assert dgconv.list_models("resnet*", pretrained=True) == []


@pytest.mark.slow
def test_by_command(tiny_run, checkout, monkeypatch, capsys):
    for command in ("add", "publish"):
        reproduce([command, str(tiny_run), "--root", str(checkout.root)])
    assert str(checkout.weights / "tiny.safetensors") in capsys.readouterr().err
    assert "`tiny`" in (checkout.root / "docs" / "results.md").read_text()
    monkeypatch.setenv("DGCONV_WEIGHTS", str(checkout.weights))
    assert dgconv.create_model("condensenet20_dgc", pretrained=True).num_classes == 10


def test_by_default_from_the_checkout(monkeypatch):
    monkeypatch.delenv("DGCONV_WEIGHTS", raising=False)
    assert weights_folder() == Path(__file__).parents[2] / "results" / "weights"


def test_the_card_says_what_it_is(published, tiny_run):
    card = json.loads((published.weights / "tiny.json").read_text())
    record = Record(tiny_run)
    assert card["error"] == record.error == record.metrics[-1]["test_error"]
    assert card["sha256"] == hashlib.sha256((tiny_run / "model.safetensors").read_bytes()).hexdigest()
    assert (card["data"], card["recipe"], card["seed"], card["epochs"]) == ("digits", "tiny", 3, 1)
    assert (card["mean"], card["std"]) == (list(record.data.mean), list(record.data.std))
    assert card["classes"] == [str(digit) for digit in range(10)]
    for convention in ("paper", "authors"):
        assert card["macs"][convention] == dgconv.count_macs(record.untrained_model, convention=convention).macs
    assert card["parameters"] == sum(p.numel() for p in record.untrained_model.parameters())
    assert card["dgconv"] == dgconv.__version__
    published.write_pages()
    page = (published.root / "docs" / "results.md").read_text()
    assert f"| `tiny` | `condensenet20_dgc` | digits | {record.error:.2f} % |" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet20", {"pretrained": True}, r"no pretrained weights of resnet20.*DGCONV_WEIGHTS.*tiny \(condensenet20"),
        ("condensenet20_dgc", {"pretrained": "huge"}, "no pretrained weights of condensenet20_dgc called 'huge'"),
        ("condensenet20", {"pretrained": "tiny"}, "no pretrained weights of condensenet20 called 'tiny'"),
        ("condensenet20_dgc", {"pretrained": True, "num_classes": 5}, "num_classes 10, not 5.*reset_classifier"),
        ("condensenet20_dgc", {"pretrained": True, "stages": (2, 2)}, r"stages \[1, 1\], not \(2, 2\)"),
        ("condensenet20_dgc", {"pretrained": True, "heads": 2}, "heads as it is by default, not 2"),
        ("condensenet20_dgc", {"pretrained": True, "conv_layer": torch.nn.Conv2d}, "conv_layer as it is by default"),
    ],
)
def test_what_does_not_fit_is_refused(published, name, options, message):
    with pytest.raises(UserError, match=message):
        dgconv.create_model(name, **options)


def test_no_weights_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("DGCONV_WEIGHTS", str(tmp_path))
    with pytest.raises(UserError, match="There are: none at all"):
        dgconv.create_model("resnet20", pretrained=True)
    assert dgconv.list_models(pretrained=True) == []


def test_several_weights_of_a_model(published):
    for suffix in ("json", "safetensors"):
        (published.weights / f"twin.{suffix}").write_bytes((published.weights / f"tiny.{suffix}").read_bytes())
    with pytest.raises(UserError, match=r"2 sets of weights fit.* pretrained='tiny' or pretrained='twin'"):
        dgconv.create_model("condensenet20_dgc", pretrained=True)
    dgconv.create_model("condensenet20_dgc", pretrained="twin")


def test_damage_is_noticed(published):
    file, card = published.weights / "tiny.safetensors", published.weights / "tiny.json"
    values, content = json.loads(card.read_text()), bytearray(file.read_bytes())
    card.write_text(json.dumps(values | {"input_size": [3, 16, 16]}))
    with pytest.raises(UserError, match="trained on 3 x 16 x 16 images, but condensenet20_dgc is made for 3 x 32 x 32"):
        dgconv.create_model("condensenet20_dgc", pretrained=True)
    card.write_text(json.dumps(values))
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="is not the file its card describes: the SHA-256 differs"):
        dgconv.create_model("condensenet20_dgc", pretrained=True)
    file.unlink()
    with pytest.raises(UserError, match=r"tiny\.safetensors cannot be read: No such file"):
        dgconv.create_model("condensenet20_dgc", pretrained=True)
    card.write_text("{}")
    with pytest.raises(UserError, match=r"tiny\.json is not a model card"):
        dgconv.create_model("condensenet20_dgc", pretrained=True)


def test_weights_of_another_network(published):
    """The card and the file agree, but the network was since built otherwise."""
    card = published.weights / "tiny.json"
    values = json.loads(card.read_text())
    values["model"]["growth"] = [8, 8]
    card.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"tiny\.safetensors does not fit the network as it is built now: "):
        dgconv.create_model("condensenet20_dgc", pretrained=True)


def test_only_finished_recorded_small_runs_are_published(tiny_run, checkout, write_run, head_folder, monkeypatch):
    with pytest.raises(UserError, match=r"the record of .* is not in .*python -m reproduce add"):
        publish(tiny_run, checkout)
    with pytest.raises(UserError, match="is not finished: 4 of 30 epochs"):
        publish(write_run("half", 50.0, done=4), checkout)
    without_weights = write_run("no weights", 2.0)
    add_record(without_weights, checkout.results)
    add_record(head_folder, checkout.results)
    add_record(tiny_run, checkout.results)
    fresh = Checkout(checkout.root)
    with pytest.raises(UserError, match=r"has no weights"):
        publish(without_weights, fresh)
    with pytest.raises(UserError, match=r"trained on \[3, 16, 16\] images, but condensenet20_dgc is made for"):
        publish(head_folder, fresh)
    monkeypatch.setattr(publishing, "LARGEST", (tiny_run / "model.safetensors").stat().st_size - 1)
    with pytest.raises(UserError, match="MiB are published here"):
        publish(tiny_run, fresh)
    assert not checkout.weights.exists()


def test_other_weights_are_not_overwritten(published, tiny_run):
    fresh = Checkout(published.root)
    assert publish(tiny_run, fresh) == published.weights / "tiny.safetensors"  # again, unchanged
    (published.weights / "tiny.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match="holds other weights; remove it first"):
        publish(tiny_run, fresh)


@pytest.mark.slow
def test_commands_take_the_name_of_weights_for_a_run(published, tiny_run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = published.results / "tiny" / "unchanged" / "seed3"
    main(["eval", "tiny", "--json"])
    again = json.loads(capsys.readouterr().out)
    assert again["run"] == str(record)
    assert again["error"] == Record(tiny_run).error
    main(["macs", "tiny", "--json"])
    by_name = json.loads(capsys.readouterr().out)
    main(["macs", str(tiny_run), "--json"])
    assert by_name == json.loads(capsys.readouterr().out)
    main(["figures", "tiny", "--only", "training", "--out", "figures", "--json"])
    assert json.loads(capsys.readouterr().out)[0]["files"]
    main(["export", "tiny", "--format", "torch", "--out", "tiny.pt2"])
    assert (tmp_path / "tiny.pt2").exists()


def test_a_run_folder_comes_before_weights_of_its_name(published, tiny_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_run.parent)
    assert find_run(Path("tiny")).path == Path("tiny")
    assert find_run(Path("runs/tiny")).path == Path("runs/tiny"), "a path is never a name"


def test_a_record_that_is_added_again_keeps_its_weights(published, tiny_run):
    place = add_record(tiny_run, published.results)
    assert Record(place).has_weights
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(load_model(place)(x), load_model(tiny_run)(x), rtol=0, atol=0)


def test_names_that_are_neither(published, capsys, monkeypatch, tmp_path):
    with pytest.raises(SystemExit):
        main(["eval", "tinny"])
    told = "there is no run folder tinny, and no published network of that name. Published: tiny"
    assert told in capsys.readouterr().err
    shutil.rmtree(published.results / "tiny")
    with pytest.raises(
        UserError, match=r"record of .* tiny is not in .*create_model\('condensenet20_dgc', pretrained='"
    ):
        find_run(Path("tiny"))
    monkeypatch.setenv("DGCONV_WEIGHTS", str(tmp_path))
    with pytest.raises(UserError, match=r"no run folder tinny.*set DGCONV_WEIGHTS to a folder"):
        find_run(Path("tinny"))


def test_our_own_published_networks_are_found_with_their_records():
    for name, card in list_cards().items():
        record = Record(find_run(Path(name)))
        assert (record.error, record.seed) == (card.error, card.seed)
        assert hashlib.sha256(record.files.weights_file.read_bytes()).hexdigest() == card.sha256


def test_weights_that_take_the_place_of_others_are_those_of_one_record_only(published, tiny_run, tmp_path):
    """Else the record of the other seed would be looked at with weights that are not its own."""
    other = tmp_path / "other"
    shutil.copytree(tiny_run, other)
    run = RunFolder(other)
    run.rewrite_config(run.config | {"recipe": Recipe.of_run(run).changed(seed=4).to_dict()})
    run.write_metrics(run.metrics_bytes.replace(b"}", b"}  "))
    first, second = published.results / "tiny" / "unchanged" / "seed3", add_record(other, published.results)
    (published.weights / "tiny.safetensors").unlink()
    publish(other, Checkout(published.root))
    assert Record(second).has_weights
    assert not Record(first).has_weights
    assert find_run(Path("tiny")).path == second


@pytest.mark.slow
def test_weights_of_a_changed_recipe_are_found_with_their_record(write_run, checkout, monkeypatch):
    run = write_run("changed", 2.0, lasso="paper", seed=2)
    RunFolder(run).write_weights(Record(run).recipe.build_model(10).state_dict())
    place = add_record(run, checkout.results)
    publish(run, checkout)
    monkeypatch.setenv("DGCONV_WEIGHTS", str(checkout.weights))
    assert list(list_cards()) == ["digits+lasso=paper"]
    assert find_run(Path("digits+lasso=paper")).path == place == checkout.results / "digits" / "lasso=paper" / "seed2"


def test_published_weights_that_are_gone(published):
    """Nothing can be resumed where they were."""
    (published.weights / "tiny.safetensors").unlink()
    with pytest.raises(UserError, match=r"tiny\.safetensors is missing.*seed3/config.json names it\. Fetch it again$"):
        load_model(find_run(Path("tiny")))


def test_trained_weights_are_listed(published, capsys):
    main(["models", "--pretrained"])
    assert capsys.readouterr().out.split()[-5:] == ["tiny", "condensenet20_dgc", "digits", *_error(published)]
    main(["models", "condensenet*", "--pretrained", "--json"])
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["weights"], listed["model"]["name"], listed["seed"]) == ("tiny", "condensenet20_dgc", 3)


def _error(checkout):
    return f"{list_cards(checkout.weights)['tiny'].error:.2f} %".split()
