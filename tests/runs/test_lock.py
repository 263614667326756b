"""Who holds a run folder, and what happens to those who do not."""

import errno
import os
import signal
import time

import pytest
from processes import FORKSERVER

from dgconv.errors import UserError
from dgconv.runs.leftovers import content_of
from dgconv.runs.lock import LOCK, locked
from dgconv.train import Recipe, resume, train, train_all

RECIPE = Recipe.of(stages=(1, 1), growth=(4, 8), image_size=8, batch_size=512, epochs=1)


def hold_with_a_child(folder, says):
    with locked([folder]):
        if os.fork() == 0:  # itself, as until it runs it has the descriptors of its parent, the lock's too
            says.send(os.getpid())
        time.sleep(60)


def test_held_by_one_at_a_time(tmp_path):
    with locked([tmp_path]):
        with pytest.raises(UserError, match=rf"in use: process {os.getpid()} on .* trains in it\. Wait until"):
            train(RECIPE, tmp_path)
        assert content_of(tmp_path) == []
    train(RECIPE, tmp_path)


def test_a_lock_that_nobody_holds_is_no_content(tmp_path):
    (tmp_path / LOCK).write_text("process 1 on another machine\n")
    train(RECIPE, tmp_path)


def test_a_refused_folder_gives_back_the_others(tmp_path):
    jobs = [(RECIPE, tmp_path / name) for name in ("free", "held")]
    (tmp_path / "held").mkdir()
    with locked([tmp_path / "held"]), pytest.raises(UserError, match="held is in use"):
        train_all(jobs)
    train_all(jobs)


def test_two_networks_in_one_folder(tmp_path):
    (tmp_path / "other").symlink_to("run")
    with pytest.raises(UserError, match="each needs a run folder of its own"):
        train_all([(RECIPE, tmp_path / "run"), (RECIPE, tmp_path / "other")])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_child_of_a_killed_process_does_not_hold_it(tmp_path):
    """As readers of images, which outlive their parent by some seconds."""
    hears, says = FORKSERVER.Pipe(duplex=False)
    process = FORKSERVER.Process(target=hold_with_a_child, args=(tmp_path, says))
    process.start()
    assert hears.poll(60)
    child = hears.recv()
    try:
        with pytest.raises(UserError, match=f"process {process.pid} "), locked([tmp_path]):
            pass
        process.kill()
        process.join()
        os.kill(child, 0)  # it lives
        with locked([tmp_path]):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    train(RECIPE, tmp_path)
    with locked([tmp_path]):  # nobody is refused
        resume(tmp_path)


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    train(RECIPE, tmp_path)
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).mkdir()  # an error for root, too
    resume(tmp_path)


def test_leftovers_of_a_run_under_way_are_not_removed(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    with locked([tmp_path]), pytest.raises(UserError, match="is in use"):
        train_all([(RECIPE, tmp_path)], resuming="begun")
    assert len(content_of(tmp_path)) == 1
