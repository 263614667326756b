"""What an export writes meanwhile, and what becomes of it when the export is killed."""

import signal
import socket
import time

import pytest
from processes import start_dgconv

from dgconv import create_model, save_model
from dgconv.deploy.export.scratch import MARK, PREFIX, scratch_folder


def hidden(place):
    return [entry for entry in place.iterdir() if entry.name.startswith(PREFIX)]


@pytest.mark.slow
def test_the_next_export_removes_what_a_killed_one_left(tmp_path):
    save_model(create_model("condensenet20_dgc", stages=(1,), growth=(4,)), tmp_path / "run")
    place = tmp_path / "place"
    place.mkdir()
    killed = start_dgconv("export", tmp_path / "run", "--format", "torch", "--out", place / "net.pt2")
    deadline = time.monotonic() + 60
    while not any((folder / MARK).exists() and (folder / MARK).read_text() for folder in hidden(place)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(hidden(place)) == 1
    with scratch_folder(place) as folder:
        assert hidden(place) == [folder]
    assert not list(place.iterdir())


def test_nothing_else_is_removed(tmp_path):
    foreign = [tmp_path / f"{PREFIX}{name}" for name in ("without-a-mark", "of-another-machine", "link")]
    foreign[0].mkdir()
    foreign[1].mkdir()
    (foreign[1] / MARK).write_text("another machine")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / MARK).write_text(socket.gethostname())
    foreign[2].symlink_to(tmp_path / "real")
    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        assert first.is_dir(), "it is in use"
        assert second.is_dir()
    assert sorted(hidden(tmp_path)) == sorted(foreign)
    assert (tmp_path / "real" / MARK).exists()
