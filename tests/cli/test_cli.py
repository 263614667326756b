"""The command line as a user meets it: output, exit codes, no traceback."""

import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from processes import run_here as dgconv
from processes import start_dgconv
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, Dataset

import dgconv_command
from dgconv import __version__, create_model, save_model
from dgconv.analysis.paper import ROWS
from dgconv.analysis.plan import StepTime
from dgconv.analysis.trained_run import open_runs
from dgconv.cli import main
from dgconv.cli._display import TrainingDisplay
from dgconv.cli.train import parse_train, run_folders
from dgconv.errors import UserError
from dgconv.runs import RunFolder
from dgconv.text import PlainConsole
from dgconv.train.recipe import Recipe
from dgconv.train.recipe_files import list_recipes, load_recipe, reported_of

SMALL = ["--stages", 1, 1, "--growth", 4, 8, "--image-size", 8, "--epochs", 1, "--batch-size", 256]


@pytest.fixture
def run_folder(tmp_path, capsys):
    small = ["--stages", 1, 1, "--growth", 4, 8, "--image-size", 8, "--epochs", 2]
    code, out, _ = dgconv(capsys, "train", *small, "--out", tmp_path / "run", "--json")
    assert code == 0
    return tmp_path / "run", json.loads(out)


def test_train_then_eval_gives_the_same_number(run_folder, capsys):
    folder, trained = run_folder
    code, out, _ = dgconv(capsys, "eval", folder, "--json")
    assert code == 0
    assert json.loads(out) == trained
    assert trained["pruning_rate"] == pytest.approx(0.75, abs=0.02)
    assert trained["macs"]["paper"] < trained["dense_macs"]["paper"]
    _, table, _ = dgconv(capsys, "eval", folder)
    assert f"{trained['error']:.2f} %" in table


def test_a_rate_is_refused_where_nothing_would_take_it(tmp_path, capsys):
    small = ["--model", "condensenet20_sgc", "--stages", 1, "--growth", 8, "--image-size", 8, "--epochs", 1]
    dgconv(capsys, "train", *small, "--out", tmp_path / "run")
    code, _, err = dgconv(capsys, "eval", tmp_path / "run", "--pruning-rate", 0.5)
    assert code == 2
    assert "condensenet20_sgc has no gates that take a --pruning-rate, as _dgc and _dgcg models have" in err


@pytest.mark.slow
def test_train_in_a_fresh_process(tmp_path):
    command = [sys.executable, "-m", "dgconv", "train", "--stages", "1", "--growth", "4", "--image-size", "8"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # as all tests
    done = subprocess.run(
        [*command, "--epochs", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "epoch   1/1" in done.stdout
    assert "top-1 error, 360 test images" in done.stdout
    assert (tmp_path / "runs" / "digits-1" / "model.safetensors").exists()


def test_several_networks(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('[model]\nname = "condensenet20"')
    code, out, _ = dgconv(capsys, "train", "digits", "mine.toml", *SMALL, "--seeds", 0, 1, "--json")
    assert code == 0
    results = json.loads(out)
    runs = ["digits-seed0-1", "digits-seed1-1", "mine-seed0-1", "mine-seed1-1"]
    assert [result["run"] for result in results] == [f"runs/{run}" for run in runs]
    assert [result["model"] for result in results] == ["condensenet20_dgc"] * 2 + ["condensenet20"] * 2
    code, out, _ = dgconv(capsys, "train", "--resume", "runs/mine-seed1-1", "runs/digits-seed0-1", "--json")
    assert code == 0
    assert json.loads(out) == [results[-1], results[0]], "there was nothing left to do"


def test_flags_apply_to_every_recipe():
    request = parse_train(["digits", "cifar10_condensenet50_dgc_rate33", "--epochs", "7", "--growth", "8", "8", "32"])
    digits, cifar = request.recipes
    assert (digits.training.epochs, cifar.training.epochs) == (7, 7)
    assert (digits.get("growth"), cifar.get("growth")) == ((8, 8, 32), (8, 8, 32))
    assert (digits.model.name, cifar.model.name) == ("condensenet20_dgc", "condensenet50_dgc")
    rates = [recipe.get("pruning_rate") for recipe in request.recipes]
    assert rates == [None, 1 / 3], "what no flag names stays as the recipe has it"
    assert [recipe.name for recipe in request.recipes] == ["digits", "cifar10_condensenet50_dgc_rate33"]


def test_a_flag_with_the_default_of_the_first_recipe_still_overrules_the_second():
    request = parse_train(["digits", "cifar10_condensenet50_dgc", "--epochs", "30"])
    assert [recipe.training.epochs for recipe in request.recipes] == [30, 30]


def test_without_a_recipe_the_digits():
    assert parse_train([]).runs == [load_recipe("digits")]
    assert parse_train(["--dry-run", "imagenet_resnet18"]).runs == [load_recipe("imagenet_resnet18")]


def test_seeds_and_folders(tmp_path):
    request = parse_train(["digits", "digits", "--seeds", "3", "4"])
    assert [(recipe.name, recipe.training.seed) for recipe in request.runs] == [("digits", 3), ("digits", 4)] * 2
    (tmp_path / "digits-seed4-1").mkdir()
    with run_folders(request, tmp_path) as jobs:
        folders = [folder.name for _, folder in jobs]
        assert folders == ["digits-seed3-1", "digits-seed4-2", "digits-seed3-2", "digits-seed4-3"]
    with run_folders(parse_train(["--model", "resnet20_dgc", "--data", "cifar10"]), tmp_path) as [(_, folder)]:
        assert folder.name == "resnet20_dgc-cifar10-1", "no longer the recipe of that name"
    with run_folders(parse_train(["--out", "here"]), tmp_path) as [(_, folder)]:
        assert str(folder) == "here"
    assert [folder.name for folder in tmp_path.iterdir()] == ["digits-seed4-1"], "what stayed empty is gone"
    with pytest.raises(UserError, match="2 are asked for"):
        parse_train(["--seeds", "0", "1", "--out", "here"])


def test_trainings_that_choose_at_the_same_time_choose_different_folders(tmp_path):
    request, parent = parse_train(["--seeds", "0", "1"]), tmp_path / "runs"
    with run_folders(request, parent) as first, run_folders(request, parent) as second:
        for _, folder in first:
            (folder / "metrics.jsonl").touch()
    assert [folder.name for _, folder in first] == ["digits-seed0-1", "digits-seed1-1"]
    assert [folder.name for _, folder in second] == ["digits-seed0-2", "digits-seed1-2"]
    assert sorted(parent.iterdir()) == [folder for _, folder in first]


@pytest.mark.slow
def test_two_trainings_started_at_once(tmp_path):
    started = [start_dgconv("train", *SMALL, "--json", folder=tmp_path) for _ in range(2)]
    ended = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert {json.loads(out)["run"] for out, _ in ended} == {"runs/digits-1", "runs/digits-2"}


@pytest.mark.slow
def test_a_dry_run_measures_the_time(capsys):
    code, out, _ = dgconv(capsys, "train", *SMALL, "--dry-run", "--json")
    assert code == 0
    time = json.loads(out)["time"]
    assert 0 < time["step"] < time["total"]
    assert time["total"] == pytest.approx(time["step"] * json.loads(out)["steps"])
    code, out, _ = dgconv(capsys, "train", *SMALL, "--dry-run")
    assert " s a step; measured with" in out


@pytest.mark.parametrize(("size", "model"), [((300, 240), "resnet18_dgc"), ((48, 48), "condensenet20_dgc")])
def test_without_a_model_one_is_taken_that_suits_the_images(size, model, tmp_path, caplog):
    for place in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", size).save(tmp_path / place / "1.png")
    side = ["--image-size", "48"] if max(size) < 64 else []
    (recipe,) = parse_train(["--data", "folder", "--data-dir", str(tmp_path), *side]).runs
    assert recipe.model.name == model
    assert (f"no `model` is named: {model} is taken" in caplog.text) == (model == "resnet18_dgc")
    (named,) = parse_train(["--data", "folder", "--data-dir", str(tmp_path), "--model", "resnet20_dgc"]).runs
    assert named.model.name == "resnet20_dgc"


def test_dry_run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("dgconv.cli.train.time_step", lambda plan, device: StepTime(1.0, plan.steps, device, 2, 2))
    monkeypatch.chdir(tmp_path)
    code, out, _ = dgconv(capsys, "train", "cifar10_condensenet50_dgc_rate33", "--dry-run")
    assert code == 0
    for figure in ("1.068M", "48.825M", "50.994M", "1.330x", "5.83 % error, 51M MACs", "-0.01 %", "50,000"):
        assert figure in out
    for figure in ("781 an epoch, 117,150 in 150 epochs", "estimated", "12.5 epochs: nothing is pruned"):
        assert figure in out
    code, out, _ = dgconv(capsys, "train", "cifar10_condensenet50", "imagenet_resnet18_dgcg", "--dry-run")
    assert code == 0
    for figure in ("printed for LGC", "2.08x fewer MACs (Table 1)", "taken for ImageNet", "5,004 an epoch"):
        assert figure in out
    code, out, _ = dgconv(capsys, "train", "digits", "imagenet_resnet18_dgc", "--dry-run", "--epochs", 12, "--json")
    assert code == 0
    assert [plan["steps"] for plan in json.loads(out)] == [12 * 22, 12 * 5004]
    assert not list(tmp_path.iterdir())


def test_recipes(capsys):
    code, out, _ = dgconv(capsys, "recipes", "imagenet_resnet18*")
    assert code == 0
    assert "31.22 %" in out
    assert "2.046x" in out
    _, out, _ = dgconv(capsys, "recipes", "cifar10_condensenet50*", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert list(rows) == list_recipes("cifar10_condensenet50*")
    row = rows["cifar10_condensenet50_dgc_rate33"]
    assert row["reported"] == vars(reported_of("cifar10_condensenet50_dgc_rate33"))
    assert row["closer"]["convention"] == "authors"
    assert row["command"] == "dgconv train cifar10_condensenet50_dgc_rate33 --data-dir DIR"


def test_macs(run_folder, capsys):
    code, out, _ = dgconv(
        capsys, "macs", "condensenet50_dgc", "--pruning-rate", 1 / 3, "--convention", "authors", "--json"
    )
    assert code == 0
    assert f"{json.loads(out)['macs'] / 1e6:.3f}" == "50.994"
    folder, trained = run_folder
    _, out, _ = dgconv(capsys, "macs", folder, "--json")
    assert json.loads(out)["macs"] == trained["macs"]["paper"], "of images as it was trained on"
    _, out, _ = dgconv(capsys, "macs", folder, "--input-size", 3, 16, 16, "--json")
    assert json.loads(out)["input_size"] == [3, 16, 16]
    code, _, err = dgconv(capsys, "macs", folder, "--pruning-rate", 0.25)
    assert code == 2
    assert f"a run is counted as it was trained. For another rate: dgconv eval {folder} --pruning-rate RATE" in err
    _, table, _ = dgconv(capsys, "macs", "resnet20_dgc")
    assert "layer3.2.conv2" in table
    assert "3.86x less" in table


def test_macs_of_a_run_whose_data_set_has_moved(tmp_path, capsys):
    for place in ("train/a", "train/b", "test/a"):
        (tmp_path / "data" / place).mkdir(parents=True)
        Image.new("RGB", (16, 16), "red").save(tmp_path / "data" / place / "1.png")
    model = create_model("condensenet20_dgcg", num_classes=2, stages=(1,), growth=(4,))
    recipe = Recipe.of(model="condensenet20_dgcg", data="folder", data_dir=str(tmp_path / "gone"), image_size=16)
    save_model(model, tmp_path / "run", recipe=recipe.to_dict(), input_size=[3, 16, 16])
    code, _, err = dgconv(capsys, "macs", tmp_path / "run")
    assert code == 2
    assert "gone does not exist" in err
    code, out, _ = dgconv(capsys, "macs", tmp_path / "run", "--data-dir", tmp_path / "data", "--json")
    assert code == 0
    assert json.loads(out)["measured"]


@pytest.mark.slow
def test_macs_paper(capsys, counted_paper, monkeypatch):
    monkeypatch.setattr(importlib.import_module("dgconv.cli.macs"), "compare_with_paper", lambda: counted_paper)
    code, out, _ = dgconv(capsys, "macs", "--paper")
    assert code == 0
    for figure in (
        "50.994M",
        "66.391M",
        "71.037M",
        "71.109M",
        "529.328M",
        "549.274M",
        "890.397M",
        "2.042x",
        "245.124M",
    ):
        assert figure in out
    _, out, _ = dgconv(capsys, "macs", "--paper", "--json")
    assert len(json.loads(out)) == len(ROWS)


def test_models(capsys):
    _, out, _ = dgconv(capsys, "models", "resnet20*gc*")
    assert out.split() == [f"resnet20_{method}" for method in ("dgc", "dgcg", "flgc", "lgc", "sgc")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["macs", "resnet19_dgc"], "unknown model 'resnet19_dgc'. Did you mean"),
        (["macs"], "name a model or a run folder"),
        (["macs", "resnet20_dgc", "--pruning-rate", "1.5"], "must be in [0, 1), got 1.5"),
        (["macs", "resnet20_dgc", "--heads", "3"], "3 heads, 16 output channels"),
        (["macs", "resnet20", "--input-size", "4", "32", "32"], "4 channels"),
        (["models", "inception*"], "no model matches 'inception*'"),
        (["eval", "no/where"], "no/where is not a run folder"),
        (["train", "--data", "cifar10"], "needs --data-dir"),
        (["train", "--data", "mnist"], "unknown data set 'mnist'"),
        (["train", "--data", "cifar10", "--data-dir", "nowhere"], "nowhere does not exist"),
        (["train", "--heads", "3"], "3 heads, 32 output channels"),
        (["train", "--seeds", "0", "1", "--heads", "3", "--name", "a/b"], "3 heads, 32 output channels"),
        (["train", "digits", "--data-dir", "."], "the digits are embedded. Leave --data-dir out"),
        (["train", "--dry-run", "--data-dir", "."], "the digits are embedded"),
        (["compare", "--data-dir", "."], "the digits are embedded"),
        (["compare", "--width", "inf"], "each from 1 to 1000000, got 3, 3, 3, inf"),
        (["train", "--epochs", "0"], "--epochs must be a whole number from 1 to 1000000000, got 0"),
        (["train", "--momentum", "5"], "--momentum must be from 0 to below 1, got 5.0"),
        (["train", "--weight-decay", "1e300"], "--weight-decay must be a number from 0 to 1e+30, got 1e+300"),
        (["train", "--generator-shrinkage", "1e300"], "must be a number from 0 to 1000, got 1e+300"),
        (["train", "--batch-size", "9" * 23], "--batch-size must be a whole number from 1 to 1000000000, got 999"),
        (["train", "--image-size", "9" * 12], "--image-size must be a whole number from 1 to 1000000, got 999"),
        (["train", "--cutout", "99"], "--cutout must be no larger than the images, 32 x 32 pixels, got 99"),
        (["train", "--model", "resnet20_dgc", "--width", "1e300"], "--width must be a whole number, got 1e+300"),
        (["train", "--model", "mobilenetv2", "--width", "1e300"], "must be above 0 and up to 1000, got 1e+300"),
        (["train", "--model", "mobilenetv2", "--stem-stride", "9" * 23], "--stem-stride must be whole numbers"),
        (
            ["train", "--model", "condensenet20_flgc", "--groups", "9" * 23],
            "--groups must be a whole number from 1 to 1000000, got 999",
        ),
        (["train", "--epochs", "many"], "many"),
        (["train", "--no-such-flag"], "no-such-flag"),
        (["train", "digit"], "unknown recipe 'digit'. Did you mean 'digits'?"),
        (["train", "digits", "cifar11_condensenet50"], "Did you mean 'cifar10_condensenet50'"),
        (["train", "--epochs", "1", "nowhere.toml"], "nowhere.toml: no such file"),
        (["train", "digits", "digits", "--out", "here"], "--out names the folder of one network, but 2 are asked for"),
        (["train", "--seeds", "1", "1"], "--seeds must differ from each other, got 1 1"),
        (["train", "digits", "--resume", "run"], "--resume goes on with a run as it was begun"),
        (["train", "--resume", "nowhere"], "nowhere"),
        (["train", "--resume"], "--resume stands there with nothing behind it; name at least one"),
        (["train", "digits", "--seeds", "--epochs", "1"], "--seeds stands there with nothing behind it"),
        (["train", "--resume", "run", "run"], "--resume names a run folder twice"),
        (["train", "--resume", "run", "other/../run"], "--resume names a run folder twice"),
        (["train", "--stop-after", "0"], "--stop-after takes a number of minutes above 0, got 0"),
        (["train", "--dry-run", "--data", "mnist"], "unknown data set 'mnist'"),
        (["train", "--dry-run", "--data", "parquet"], "needs --data-dir"),
        (["train", "--dry-run", "--data", "cifar10", "--data-dir", "nowhere"], "nowhere does not exist"),
        (["train", "--dry-run", "--data", "folder", "--data-dir", "nowhere"], "nowhere does not exist"),
        (["train", "--dry-run", "--heads", "3"], "3 heads, 32 output channels"),
        (["train", "--device", "gpu"], "gpu"),
        (["train", "--workers", "-1"], "--workers must be a whole number from 0 to 1000, got -1; 0 decodes without"),
        (["recipes", "inception*"], "no recipe matches 'inception*'"),
        (["import-authors", "nowhere.tar", "out"], "nowhere.tar: no such file"),
        (["predict", "run"], "no images are named; name files"),
        (["compare", "--methods", "dgc", "--seeds"], "--seeds must be at least one, got none"),
        (["frontier", "study.toml", "--image-sizes", "0"], "--image-sizes must be a whole number from 1"),
        (["frontier", "study.toml", "--seeds"], "--seeds stands there with nothing behind it"),
        (["report", "run", "--examples", "0"], "--examples must be at least 2, got 0"),
    ],
)
def test_wrong_use_exits_with_2_and_a_message(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = dgconv(capsys, *args)
    assert code == 2
    assert message in " ".join((out + err).replace("│", " ").split())
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.fixture(scope="module")
def spoilt_folder(head_folder, tmp_path_factory):
    """A run whose weights are no numbers."""
    folder = tmp_path_factory.mktemp("spoilt") / "run"
    shutil.copytree(head_folder, folder)
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"].fill_(math.nan)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["export", "{spoilt}", "--format", "prepared", "--out", "{tmp}/out"], "gives NaN or infinite values"),
        (["predict", "{spoilt}", "{image}"], "no image has an answer"),
        (["predict", "{run}", "{tmp}/text.png"], "no image has an answer"),
        (["predict", "{run}", "{image}", "--workers", "-1"], "--workers must be at least 0, got -1"),
        (["explore", "{run}", "--rates", "2", "--out", "{tmp}/out"], "--rates must be in [0, 1), got 2"),
        (["compare", "--methods", "sgc", "--out", "{run}"], "is the run folder of one network"),
        (["frontier", "{tmp}/study.toml", "--out", "{run}", "--dry-run"], "is the run folder of one network"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_careless_use_of_runs_exits_with_2(command, message, head_folder, spoilt_folder, tmp_path, capsys):
    Image.new("RGB", (16, 16)).save(tmp_path / "bild ä.png")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "study.toml").write_text('[points]\na = { family = "dense", model = "resnet20", data = "digits" }\n')
    places = {"run": head_folder, "spoilt": spoilt_folder, "tmp": tmp_path, "image": tmp_path / "bild ä.png"}
    code, _, err = dgconv(capsys, *(word.format(**places) for word in command))
    assert code == 2
    assert message in " ".join(err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "{run}"],
        ["explore", "{run}", "--out", "{tmp}/page.html"],
        ["figures", "{run}", "--out", "{tmp}/figures"],
        ["report", "{run}", "--out", "{tmp}/report.html"],
        ["train", "--resume", "{run}"],
    ],
    ids=lambda command: command[0],
)
def test_a_data_folder_for_runs_on_the_digits_is_refused(command, head_folder, tmp_path, capsys):
    command = [argument.format(run=head_folder, tmp=tmp_path) for argument in command]
    code, _, err = dgconv(capsys, *command, "--data-dir", tmp_path)
    assert code == 2
    assert f"nothing would be read from data folder {tmp_path}: the digits are embedded" in err
    assert not list(tmp_path.iterdir())


def test_a_data_folder_for_several_runs_may_be_that_of_the_others(head_folder, tmp_path):
    request = parse_train(["digits", "cifar10_condensenet50", "--data-dir", "there"])
    assert [recipe.data.dir for recipe in request.recipes] == ["there"] * 2
    assert len(request.recipes[0].load_data().test) == 360, "the digits are not looked for in it"
    run = RunFolder(head_folder)
    recipe = Recipe.of_run(run).changed(data="cifar10", image_size=None)
    RunFolder(tmp_path).rewrite_config(run.config | {"recipe": recipe.to_dict()})
    on_digits, on_cifar = open_runs([head_folder, tmp_path], "there")
    assert len(on_digits.data.test) == 360
    with pytest.raises(UserError, match="there does not exist"):
        on_cifar.data  # noqa: B018


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_told_at_once(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = dgconv(capsys, "train", "--device", "cuda")
    assert code == 2
    assert "no GPU is to be seen" in err
    assert not list(tmp_path.iterdir())


def test_import_authors(tmp_path, capsys, monkeypatch):
    foreign = tmp_path / "foreign.tar"
    torch.save({"state_dict": {"conv.weight": torch.zeros(1)}}, foreign)
    code, _, err = dgconv(capsys, "import-authors", foreign, tmp_path / "out")
    assert code == 2
    assert "not a network of the authors' code" in err
    assert not (tmp_path / "out").exists()
    code, _, err = dgconv(capsys, "import-authors", foreign, tmp_path)
    assert code == 2
    assert "is not an empty folder" in err


def without_torch(*args):
    """Exit code and standard output of a new process, which must not import torch."""
    probe = "import sys, dgconv_command\ntry: dgconv_command.main()\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", probe, *args], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_version_takes_no_time():
    assert without_torch("--version") == (0, f"dgconv {__version__}\n")


@pytest.mark.slow
@pytest.mark.parametrize("args", [["--version"], ["--help"], ["macs", "--help"], ["models"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_is_no_error_with_a_traceback(args, unbuffered):
    command = [sys.executable, "-c", "import dgconv_command; dgconv_command.main()", *args]
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_onto_a_full_disk(unbuffered):
    command = [sys.executable, "-c", "import dgconv_command; dgconv_command.main()", "--help"]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


WITHOUT_A_COMMAND = [["--help"], ["-h"], [], ["trian"], ["trian", "digits"], ["--versoin"]]
OF_A_COMMAND = [["import_authors", "-h"], ["--stem", "import-authors", "a", "b"], ["--tyro-print-completion", "bash"]]


@pytest.mark.slow
@pytest.mark.parametrize("args", WITHOUT_A_COMMAND, ids=" ".join)
def test_what_names_no_command_takes_no_time(args):
    code, _ = without_torch(*args)
    assert code == (0 if args in (["--help"], ["-h"]) else 2)


@pytest.mark.parametrize("args", WITHOUT_A_COMMAND + OF_A_COMMAND, ids=" ".join)
def test_what_is_told_without_the_package_is_what_the_package_would_tell(args, capsys, monkeypatch):
    told = dgconv(capsys, *args)
    monkeypatch.setattr(sys, "argv", ["dgconv", *args])
    with pytest.raises(SystemExit):
        dgconv_command.main()
    assert capsys.readouterr() == told[1:]
    if args in OF_A_COMMAND:
        assert "Stem of a CondenseNet" in told[1] + told[2]


@pytest.mark.slow
def test_importing_needs_neither_torchvision_nor_a_gpu():
    probe = (
        "import sys, torch, dgconv; assert not torch.cuda.is_initialized(); "
        "bad = {'torchvision', 'timm', 'sklearn', 'matplotlib', 'pyarrow'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["train", "--image-size", 1_000_000, "--dry-run"],
            "there is not enough memory: DefaultCPUAllocator: can't all",
        ),
        (["train", "--mac-budget", 0.5, "--dry-run"], "--mac-budget is for methods whose cost comes out of training"),
        (
            ["train", "--model", "resnet20_cgnet", "--target", "nan", "--dry-run"],
            "--target must be a finite number, got nan",
        ),
        (["eval", "afile"], "afile is a file, and not a run folder; name the folder that it is in"),
        (["import-authors", ".", "out"], ".: is no file; expected a checkpoint of the authors' code"),
        (["bench", "condensenet20_dgc", "--threads", 100_000], "threads must be at most"),
        (["compare", "--methods", "dense", "--image-size", 0, "--out", "out"], "--image-size must be a whole number"),
    ],
)
def test_what_a_careless_user_types(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").touch()
    code, _, err = dgconv(capsys, *args)
    assert code == 2
    assert message in err


class EndsItsWorker(Dataset):
    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 1

    def __getitem__(self, index):
        self.how()


def ask_numpy_for_too_much():
    np.empty(1 << 50)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork workers")
@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "was ended by the signal 'Killed': either by somebody or, if mem",
        ),
        (lambda: os.kill(os.getpid(), signal.SIGBUS), "was ended by the signal 'Bus error': mostly for lack of shared"),
        (
            lambda: os.kill(os.getpid(), signal.SIGSEGV),
            "was ended by the signal 'Segmentation fault': a library failed",
        ),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "was ended by the signal 'Terminated'. With fewer --workers"),
        (lambda: os._exit(3), "exited unexpectedly with exit code 3. With fewer --workers"),
    ],
)
def test_how_a_worker_was_lost(how, told, monkeypatch, capsys):
    loader = DataLoader(EndsItsWorker(how), num_workers=1, multiprocessing_context="fork")
    monkeypatch.setattr("dgconv.cli._run", lambda args: list(loader))
    code, _, err = dgconv(capsys, "eval")
    assert code == 2
    line = err.splitlines()[-1]  # torch may write a line of its own
    assert line.startswith("dgconv: process ")
    assert f", which decoded images, {told}" in line
    assert "not enough memory" not in line


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork workers")
def test_a_worker_without_memory_is_told_in_a_line(monkeypatch, capsys):
    loader = DataLoader(EndsItsWorker(ask_numpy_for_too_much), num_workers=1, multiprocessing_context="fork")
    monkeypatch.setattr("dgconv.cli._run", lambda args: list(loader))
    code, _, err = dgconv(capsys, "eval")
    assert code == 2
    assert err.startswith("dgconv: there is not enough memory: ")
    assert "DataLoader worker" in err
    assert "fewer --workers" in err
    assert err.count("\n") == 1


def test_errors_of_ours_keep_their_traceback(monkeypatch):
    def broken(args):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("dgconv.cli._run", broken)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        main(["models"])


def test_nothing_in_the_name_of_a_file_acts_on_the_terminal(tmp_path, capsys):
    """A title, a colour, a line written over, a byte that is no character: all are shown for what they are."""
    name = "a\x1b]0;title\x07\x1b[31m\rb\udcff"
    run = tmp_path / name
    save_model(create_model("condensenet20_dgc", stages=(1,), growth=(4,), num_classes=10), run)
    for arguments in (["macs", run], ["eval", run], ["export", run, "--out", tmp_path / name / name / "x.onnx"]):
        _, out, err = dgconv(capsys, *arguments)
        assert not {"\x1b", "\x07", "\r", "\udcff"} & {*out, *err}
    assert "a\\x1b]0;title\\x07\\x1b[31m\\rb\\udcff" in err
    table = Table(title=name)
    table.add_column(name)
    table.add_row(name)
    PlainConsole(width=300).print(name, table)
    with TrainingDisplay(PlainConsole(width=300), [1]) as display:
        display.start(0, name, 1, 0)
        display.first_step(0, 100, False)
    out = capsys.readouterr().out
    assert out.count("a\\x1b]0;title\\x07\\x1b[31m\\rb\\udcff") >= 4
    assert not {"\x1b", "\x07", "\r", "\udcff"} & {*out}
