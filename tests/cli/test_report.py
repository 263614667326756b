"""``dgconv report``."""

import json

import pytest

from dgconv.cli import main


@pytest.mark.slow
def test_command(bare_folder, tmp_path, capsys):
    out = tmp_path / "report.html"
    main(["report", str(bare_folder), str(bare_folder), "--out", str(out), "--only", "training", "--json"])
    listing = json.loads(capsys.readouterr().out)
    assert listing["file"] == str(out)
    assert listing["bytes"] == out.stat().st_size
    assert {one["run"] for one in listing["missing"]} == {str(bare_folder)}
    assert "time by layer" in [one["what"] for one in listing["missing"]]
    assert out.read_text().count("<img") == 2
    assert [file.name for file in out.parent.iterdir()] == ["report.html"], "nothing temporary is left"


def test_quick_report_takes_the_place_of_an_old_one(bare_folder, tmp_path, capsys):
    out = tmp_path / "report.html"
    out.write_text("old")
    main(["report", str(bare_folder), "--no-figures", "--out", str(out)])
    page = out.read_text()
    assert page.startswith("<!doctype html>")
    assert "<img" not in page
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{out}: 0.0 MB")
    assert "not in it" in said[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name at least one run folder"),
        (["{tmp}"], "is not a run folder"),
        (["{run}", "{tmp}/nowhere"], "is not a run folder"),
        (["{run}", "--only", "trainig"], "Did you mean 'training'"),
        (["{run}", "--examples", "1"], "at least 2"),
        (["{run}", "--no-figures", "--out", "{tmp}"], "is a folder"),
        (["{run}", "--no-figures", "--out", "{run}/config.json/report.html"], "cannot be written"),
        (["{run}", "--no-figures", "--out", "{tmp}/nowhere/report.html"], "nowhere is not a folder; make it first"),
    ],
)
def test_wrong_use(arguments, message, bare_folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["report", *(argument.format(run=bare_folder, tmp=tmp_path) for argument in arguments)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
