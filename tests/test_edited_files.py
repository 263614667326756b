"""Files that somebody has edited: every command names the file and what is wrong in it, and exits with 2."""

import json
import shutil

import pytest

from dgconv import create_model
from dgconv.analysis.figures.style import numbers_in
from dgconv.cli import main
from dgconv.data.corrupt import CorruptImage
from dgconv.errors import UserError
from dgconv.models.pretrained import read_card
from dgconv.models.storage import create_from_file, save_model
from dgconv.runs.metrics import read_metrics
from dgconv.train import Recipe, load_recipe
from dgconv.values import check_option, load_json, load_toml
from reproduce.__main__ import main as reproduce

MODEL = {"name": "condensenet20_dgc", "num_classes": 10, "stages": [1], "growth": [4]}
CARD = {
    "model": MODEL, "data": "digits", "input_size": [3, 32, 32], "mean": [0.5], "std": [0.5], "classes": ["0"],
    "error": 1, "macs": {"paper": 1.0, "authors": 2.0}, "parameters": 1, "recipe": "digits", "seed": 0, "epochs": 1,
    "precision": "float32", "trained_on": "a CPU", "dgconv": "0.1", "sha256": "0",
}  # fmt: skip
DESCRIBED = b'<svg><d:description xmlns:d="http://purl.org/dc/elements/1.1/">%s</d:description></svg>'
WRONG_CONFIG = [
    ([], r"config\.json must be a table of keys and values, got \[\]"),
    ({"model": "resnet20"}, r"config\.json: model must be a table of keys and values, got 'resnet20'"),
    ({"model": {"num_classes": 10}}, r"config\.json: model: the key 'name' is missing; it must be a text"),
    ({"model": {"name": ["resnet20"]}}, r"config\.json: model\.name must be a text"),
    ({"model": MODEL | {"num_classes": "10"}}, r"config\.json: model\.num_classes must be a whole number, got '10'"),
    ({"model": MODEL | {"pruning_rate": "0.5"}}, r"config\.json: model\.pruning_rate must be a number, got '0.5'"),
    ({"model": MODEL | {"stages": 1}}, r"config\.json: model\.stages must be a list, each item a whole number, got 1"),
    ({"model": MODEL | {"keep_rule": "floor"}}, r"config\.json: model\.keep_rule must be 'ceil' or 'round', got 'fl"),
    ({"model": MODEL | {"widths": [1]}}, r"config\.json: model\.widths must be a table of keys and values, got \[1\]"),
    ({"model": MODEL | {"more": 1}}, r"config\.json: condensenet20_dgc has no option 'more'"),
    ({"model": MODEL, "input_size": 32}, r"config\.json: input_size must be a list of 3, each item a whole number"),
    ({"model": MODEL, "input_size": [3, 32]}, r"config\.json: input_size must be a list of 3"),
    ({"model": MODEL, "input_size": [3, 0, 32]}, r"config\.json: input_size must be channels, height and width, each"),
    ({"model": MODEL, "recipe": []}, r"config\.json: recipe must be a table of keys and values, got \[\]"),
    ({"model": MODEL, "epochs_done": True}, r"config\.json: epochs_done must be a whole number, got True"),
    ({"model": MODEL, "environment": "here"}, r"config\.json: environment must be a table of keys and values"),
    ({"model": MODEL, "measured_macs": {"paper": 1}}, r"measured_macs: the key 'authors' is missing; it must be a num"),
    ({"model": MODEL, "measured_gates": {"overlap": {"chance": "no"}}}, r"measured_gates\.overlap\.chance must be a n"),
]


def edited(config, folder):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def refused(capsys):
    """Runs a command that must be refused; what it says."""

    def run(*args, command=main):
        with pytest.raises(SystemExit) as exit:
            command([str(arg) for arg in args])
        assert exit.value.code == 2
        return capsys.readouterr().err

    return run


@pytest.fixture
def folder(tmp_path):
    save_model(create_model(**MODEL), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("config", "message"), WRONG_CONFIG)
def test_the_configuration_of_a_run(config, message, folder, refused):
    edited(config, folder)
    assert_matches(message, refused("macs", folder))


def assert_matches(message, text):
    with pytest.raises(UserError, match=message):
        raise UserError(text)


def test_what_is_null_counts_as_missing(folder, capsys):
    nothing = {"recipe": None, "input_size": None, "environment": None}
    main(["macs", str(edited({"model": MODEL | {"pruning_rate": None}, **nothing}, folder)), "--json"])
    assert json.loads(capsys.readouterr().out)["macs"]


@pytest.mark.parametrize("command", ["eval", "macs", "export", "bench", "explore"])
def test_every_command_that_reads_a_run(command, head_folder, tmp_path, refused):
    shutil.copytree(head_folder, tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    edited(config | {"model": config["model"] | {"heads": "four"}}, tmp_path / "run")
    out = ["--out", tmp_path / "a.onnx"] if command == "export" else []
    assert "config.json: model.heads must be a whole number, got 'four'" in refused(command, tmp_path / "run", *out)


def test_the_recipe_of_a_run(head_folder, tmp_path, refused):
    shutil.copytree(head_folder, tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    edited(config | {"recipe": config["recipe"] | {"training": {"epochs": "many"}}}, tmp_path / "run")
    said = refused("eval", tmp_path / "run")
    assert "config.json" in said
    assert "epochs must be a whole number, got 'many'" in said


def test_an_option_that_only_the_network_can_refuse(tmp_path):
    with pytest.raises(UserError, match=r"config\.json: the 'model' entry cannot be used"):
        create_from_file(MODEL | {"conv_layer": "none"}, tmp_path / "config.json")


def test_a_size_that_the_network_does_not_take(folder, tmp_path, refused):
    edited({"model": MODEL, "input_size": [1, 32, 32]}, folder)
    said = refused("export", folder, "--format", "torch", "--out", tmp_path / "net.pt2")
    assert "the network does not take images of 1 x 32 x 32" in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"epoch": 1, "test_error": "5", "seconds": 1}, "line 2: 'test_error' must be a number, got '5'"),
        ({"epoch": 1, "test_error": None, "seconds": 1}, "line 2: 'test_error' must be a number, got None"),
        ({"epoch": 1, "test_error": 5.0}, "line 2: 'seconds' must be a number, got None"),
        ({"epoch": 1, "test_error": 5.0, "seconds": 1, "pruned_share": []}, "line 2: 'pruned_share' must be a number"),
        ({"epoch": 1, "test_error": 10**400, "seconds": 1}, r"line 2 is no JSON: the number '1000.* is too large"),
    ],
)
def test_the_metrics_of_a_run(line, message, tmp_path):
    good = {"epoch": 1, "test_error": 5.0, "seconds": 1, "of_later_versions": "anything"}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(UserError, match=message):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "resnet20"}, "model must be a table"),
        ({"model": {"num_classes": 10}}, "model: the key 'name' is missing"),
        ({"macs": {"paper": 1.0}}, "macs: the key 'authors' is missing"),
        ({"classes": [1]}, "classes must be a list, each item a text"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"input_size": 32}, "input_size must be a list, each item a whole number"),
    ],
)
def test_model_cards(change, message, tmp_path, monkeypatch, refused):
    (tmp_path / "good.json").write_text(json.dumps(CARD | {"more": 1}))
    assert read_card(tmp_path / "good.json").error == 1.0
    (tmp_path / "card.json").write_text(json.dumps(CARD | change))
    monkeypatch.setenv("DGCONV_WEIGHTS", str(tmp_path))
    assert_matches(rf"card\.json is not a model card: it: {message}", refused("models", "--pretrained"))


def test_a_record_among_many_is_named(tmp_path, head_folder, refused):
    place = tmp_path / "results/mine/unchanged/seed0"
    shutil.copytree(head_folder, place)
    config = json.loads((head_folder / "config.json").read_text())
    edited(config | {"recipe": Recipe.from_dict(config["recipe"], "it").changed(heads=3).to_dict()}, place)
    (tmp_path / "README.md").write_text("<!-- begin: results -->\n<!-- end: results -->\n")
    said = refused("--root", tmp_path, command=reproduce)
    assert "mine/unchanged/seed0/config.json: heads must divide out_channels" in said


@pytest.mark.parametrize("text", [b"", b"<svg", DESCRIBED % b"{"])
def test_a_picture_that_was_edited_says_nothing_of_itself(text):
    assert numbers_in(text) is None
    assert numbers_in(DESCRIBED % b"{}") == {}


ODD_JSON = {
    "[" * 100_000: "brackets are nested deeper than 50",
    '{"a":' * 60 + "1" + "}" * 60: "brackets are nested deeper than 50",
    "1" * 5000: "the number '111.* is too large",
    "-" + "9" * 30: "is too large",
    "1e999": "is too large",
    '"\\ud800"': "surrogates not allowed",
    " " * 17_000_000: "17,000,000 characters; at most 16,777,216",
    "{": "property name",
}


@pytest.mark.parametrize(("text", "message"), ODD_JSON.items(), ids=range(len(ODD_JSON)))
def test_odd_json(text, message):
    with pytest.raises(ValueError, match=message):
        load_json(text)


def test_json_that_only_looks_odd():
    assert load_json('"' + "[" * 1000 + '"') == "[" * 1000
    assert load_json(("[" + "[1]," * 1000 + "2]").encode())[-2:] == [[1], 2]
    assert load_json("[" * 50 + "]" * 50)
    assert load_json('"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 10_000, "brackets are nested deeper"),
        ("a = " + "[" * 60 + "]" * 60, "tables are nested deeper than 50"),
        ("[" + " . ".join("a" * 9000) + "]", "more than 500 dots"),
        (".".join("a" * 100) + " = 1", "tables are nested deeper than 50"),
        ("a = 0x" + "f" * 5000, "a number is too large"),
        ("a = 1\n" * 20_000, "120,000 characters; at most 65,536"),
    ],
)
def test_odd_toml(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_toml(text)
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UserError, match=rf"a\.toml .*{message}"):
        load_recipe(tmp_path / "a.toml")


def test_nothing_in_a_message_acts_on_a_terminal():
    error = UserError("a\x1b[31mb\rc\x9bd\u202ee\udcff\nfü\tg")
    assert str(error) == "a\\x1b[31mb\\rc\\x9bd\\u202ee\\udcff\nfü\tg"
    assert str(CorruptImage("\x1b]0;x")).startswith("\\x1b]0;x; restore")


def test_an_option_that_is_a_table_or_none():
    kind = dict[str, int] | None
    for value in ({"a": 1}, {}, None):
        check_option(value, kind, "it")
    for value in ({"a": "1"}, [1], 1):
        with pytest.raises(UserError, match="it must be a table of keys and values, got"):
            check_option(value, kind, "it")
