"""The command line as a user meets it: output, exit codes, no traceback."""

import json
import subprocess
import sys

import pytest
import torch

from dgconv.cli import main


def dgconv(capsys, *args):
    """Run in this process; exit code, standard output and standard error."""
    code = 0
    try:
        main([str(arg) for arg in args])
    except SystemExit as exit:
        code = exit.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


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


def test_train_in_a_fresh_process(tmp_path):
    command = [sys.executable, "-m", "dgconv", "train", "--stages", "1", "--growth", "4", "--image-size", "8"]
    done = subprocess.run([*command, "--epochs", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "epoch   1/1" in done.stdout
    assert "top-1 error, 360 test images" in done.stdout
    assert (tmp_path / "runs" / "condensenet20_dgc-digits-1" / "model.safetensors").exists()


def test_macs(run_folder, capsys):
    code, out, _ = dgconv(
        capsys, "macs", "condensenet50_dgc", "--pruning-rate", 1 / 3, "--convention", "authors", "--json"
    )
    assert code == 0
    assert f"{json.loads(out)['macs'] / 1e6:.3f}" == "50.994"
    folder, trained = run_folder
    _, out, _ = dgconv(capsys, "macs", folder, "--input-size", 3, 8, 8, "--json")
    assert json.loads(out)["macs"] == trained["macs"]["paper"]
    _, table, _ = dgconv(capsys, "macs", "resnet20_dgc")
    assert "layer3.2.conv2" in table
    assert "3.86x less" in table


def test_macs_paper(capsys):
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
    assert len(json.loads(out)) == 22


def test_models(capsys):
    _, out, _ = dgconv(capsys, "models", "resnet20*")
    assert out.split() == ["resnet20", "resnet20_dgc", "resnet20_dgcg", "resnet20_sgc"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["macs", "resnet19_dgc"], "unknown model 'resnet19_dgc'. Did you mean"),
        (["macs"], "name a model or a run folder"),
        (["macs", "resnet20_dgc", "--pruning-rate", "1.5"], "must be in [0, 1), got 1.5"),
        (["macs", "resnet20_dgc", "--heads", "3"], "3 heads, 16 output channels"),
        (["macs", "resnet20", "--input-size", "4", "32", "32"], "4 channels"),
        (["models", "vgg*"], "no model matches 'vgg*'"),
        (["eval", "nowhere"], "nowhere is not a run folder"),
        (["train", "--data", "cifar10"], "needs --data-dir"),
        (["train", "--data", "mnist"], "unknown data set 'mnist'"),
        (["train", "--data", "cifar10", "--data-dir", "nowhere"], "nowhere does not exist"),
        (["train", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "--epochs", "many"], "many"),
        (["train", "--no-such-flag"], "no-such-flag"),
        (["import-authors", "nowhere.tar", "out"], "nowhere.tar: no such file"),
    ],
)
def test_wrong_use_exits_with_2_and_a_message(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = dgconv(capsys, *args)
    assert code == 2
    assert message in " ".join((out + err).replace("│", " ").split())
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir()), "nothing is left behind"


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


def test_importing_needs_neither_torchvision_nor_a_gpu():
    probe = (
        "import sys, torch, dgconv; assert not torch.cuda.is_initialized(); "
        "bad = {'torchvision', 'timm', 'sklearn', 'matplotlib', 'pyarrow'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
