"""Files that are there whole or not at all."""

import os
import signal
from pkgutil import resolve_name

import pytest

from dgconv.files import read_whole, write_atomically


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_who_may_read_a_file_is_for_the_umask_to_say(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_what_is_read_is_a_file_and_no_larger_than_said(tmp_path):
    (tmp_path / "file").write_bytes(b"four")
    assert read_whole(tmp_path / "file", 4) == b"four"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name, words in {"file": "4 bytes; at most 3", "pipe": "no ordinary file", "zeros": "no ordinary file"}.items():
        with pytest.raises(OSError, match=words):
            read_whole(tmp_path / name, 3)
    with pytest.raises(OSError, match="directory"):
        read_whole(tmp_path, 3)


def killed_while_it_writes(path):
    """As by kill -9, or by a kernel that is out of memory."""
    child = os.fork()
    if not child:
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        try:
            write_atomically(path, b"never whole")
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_the_next_write_removes_what_a_killed_one_left(tmp_path):
    path, other = tmp_path / "[file]", tmp_path / "other"
    for target in (path, other):
        killed_while_it_writes(target)
    assert sorted(entry.name[:6] for entry in tmp_path.iterdir()) == [".[file", ".other"]
    write_atomically(path, b"new")
    assert sorted(entry.name[:6] for entry in tmp_path.iterdir()) == [".other", "[file]"], "each for itself"


def test_writers_of_one_file_leave_each_other_alone(tmp_path, monkeypatch):
    """Whether the first has only made its file by then, or written it as well."""
    path = tmp_path / "file"

    def with_another(function):
        def meanwhile(*args):
            monkeypatch.undo()
            write_atomically(path, b"second")
            assert path.read_bytes() == b"second"
            return function(*args)

        return meanwhile

    for name in ("dgconv.files.hold_open_file", "os.fsync"):
        monkeypatch.setattr(name, with_another(resolve_name(name)))
        write_atomically(path, b"first")
        assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_link_or_a_pipe_stays_what_it_is(tmp_path):
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"new")
    assert pipe.is_fifo()
    assert os.read(reader, 10) == b"new"
    os.close(reader)


@pytest.mark.parametrize("name", ["x" * 250 + ".html", "ü" * 120 + ".html"])
def test_a_name_as_long_as_the_disk_takes(tmp_path, name):
    """What is written first has a longer one, and after hours of work it would be too late to find that out."""
    write_atomically(tmp_path / name, b"old")
    write_atomically(tmp_path / name, b"new")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"new"
