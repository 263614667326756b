"""Wrong use of the command, and the page as a file."""

import json
import shutil

import pytest

from dgconv.analysis.trained_run import TrainedRun
from dgconv.cli import main
from dgconv.explore.page import static_page
from dgconv.explore.session import Session


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}"], "is not a run folder"),
        (["{bare}"], "model.safetensors is missing"),
        (["{run}", "--port", "65536"], "port 65536 does not exist"),
        (["{run}", "--port", "-1"], "port -1 does not exist"),
        (["{run}", "--rates", "0.5", "1.5"], "must be in [0, 1)"),
        (["{run}", "--images", "5", "4000"], "there is no test image '4000'; give a whole number from 0 to 359"),
        (["{run}", "--images", "-2", "--out", "{tmp}/page.html"], "there is no test image '-2'"),
        (["{run}", "--out", "{tmp}/nowhere/page.html"], "nowhere is not a folder; make it first"),
        (["{run}", "--out", "{tmp}"], "is a folder; name a file"),
    ],
)
def test_wrong_use(arguments, message, head_folder, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(head_folder / name, bare)
    arguments = [argument.format(run=head_folder, tmp=tmp_path, bare=bare) for argument in arguments]
    with pytest.raises(SystemExit) as stopped:
        main(["explore", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.html"))


def data_in(page):
    text = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    return json.loads(text)


def test_a_page_in_a_file(head_folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    main(["explore", str(head_folder), "--images", "3", "17", "3", "--rates", "0.5", "--out", str(out)])
    assert capsys.readouterr().out.splitlines()[0] == "2 images at pruning rate 0.5"
    data, session = data_in(out.read_text()), Session(TrainedRun(head_folder), [0.5])
    assert list(data["looks"]) == ["3", "17"]
    looks = [session.look("17", rate) for rate in (0.5, 0.75)]
    for look in (*data["looks"]["17"], *looks):
        assert look.pop("milliseconds") > 0  # measured anew each time
    assert data["looks"]["17"] == looks
    assert data["averages"] == [session.average(rate) for rate in (0.5, 0.75)]
    assert "http" not in out.read_text().replace("http-equiv", ""), "it needs nothing from anywhere"
    main(["explore", str(head_folder), "--images", "3", "--rates", "0.75", "--out", str(out)])
    assert capsys.readouterr().out.splitlines()[0] == "1 image at pruning rate 0.75"


def test_names_are_text(head_folder):
    session = Session(TrainedRun(head_folder), [0.75])
    evil = "</script><script>alert(1)</script>"
    session.data.classes[:] = [evil] * 10
    session.run.recipe = type(session.run.recipe)(name=evil)
    page = static_page(session, ["0"], lambda rate: None)
    assert "<script>alert" not in page
    assert data_in(page)["images"][0]["label"] == evil
