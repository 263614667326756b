"""Places that cannot be written to, full disks and readers that leave: a line and an exit code, no traceback."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import dgconv
import dgconv_command
from dgconv import cli
from dgconv.errors import UserError
from dgconv.files import check_file, check_folder
from dgconv.train import Recipe, train

COMMANDS = [
    ["train", "--out", "{out}"],
    ["train", "--resume", "{run}"],
    ["compare", "--out", "{out}"],
    ["figures", "{run}", "--out", "{out}"],
    ["export", "{run}", "--out", "{out}.onnx"],
    ["explore", "{run}", "--out", "{out}"],
    ["report", "{run}", "--out", "{out}"],
    ["bench", "{run}", "--picture", "{out}.png"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command[0]} {command[-2]}")
def test_a_read_only_disk_is_told_before_the_work(command, head_folder, tmp_path, capsys, monkeypatch):
    def refuse(dir):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), f"{dir}/tmp")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(SystemExit, match="2"):
        cli.main([argument.format(run=head_folder, out=tmp_path / "out") for argument in command])
    assert "cannot be written: Read-only file system. Name another place" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_places(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for file in ("new", "file"):
        check_file(tmp_path / file)
    for folder in ("new/newer", "folder"):
        check_folder(tmp_path / folder)
    assert len(list(tmp_path.rglob("*"))) == 2, "nothing is made"
    check_file(Path(os.devnull))
    with pytest.raises(UserError, match="is a folder; name a file"):
        check_file(tmp_path / "folder")
    with pytest.raises(UserError, match="nowhere is not a folder; make it first"):
        check_file(tmp_path / "nowhere" / "file")
    for folder in ("file", "file/within"):
        with pytest.raises(UserError, match=r"cannot be a folder, because .*file is a file"):
            check_folder(tmp_path / folder)


def test_links_that_lead_nowhere(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("no/where")
    (tmp_path / "new").symlink_to("made")
    for folder in ("loop", "nowhere", "new", "loop/within"):
        with pytest.raises(UserError, match=r"cannot be a folder, because .* is a link that leads nowhere"):
            check_folder(tmp_path / folder)
        with pytest.raises(UserError, match="is a link that leads nowhere"):
            train(Recipe(), tmp_path / folder)
    check_file(tmp_path / "new")
    with pytest.raises(UserError, match="loop is a link that leads nowhere"):
        check_file(tmp_path / "loop")
    with pytest.raises(UserError, match="no is not a folder; make it first"):
        check_file(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "a file could not be written: No space left on device."),
        (PermissionError(errno.EACCES, "Permission denied", "out/page.html"), "out/page.html: Permission denied."),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", b"data/gone"), "data/gone: No such file"),
    ],
)
def test_trouble_with_the_users_files_is_one_line(error, message, capsys, monkeypatch):
    _fail_with(error, monkeypatch)
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", f"{cli.PACKAGE}/recipes/digits.toml"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        OSError("a library's own"),
    ],
)
def test_trouble_of_ours_keeps_its_traceback(error, monkeypatch):
    _fail_with(error, monkeypatch)
    with pytest.raises(type(error)) as raised:
        cli.main([])
    assert raised.value is error


def _fail_with(error, monkeypatch):
    def fail(args):
        raise error

    monkeypatch.setattr(cli, "_run", fail)


def test_a_reader_that_leaves_is_no_error(monkeypatch, capsys):
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit, match="1"):
            cli.main(["models", "--json"])
    assert capsys.readouterr().err == ""


def test_ctrl_c_during_the_imports(tmp_path):
    """A package that is interrupted while it is imported stands for ours, which takes seconds of torch."""
    (tmp_path / "dgconv").mkdir()
    (tmp_path / "dgconv" / "__init__.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    paths = [str(tmp_path), str(Path(dgconv.__file__).parents[1])]
    command = f"import sys; sys.path[:0] = {paths}; from dgconv_command import main; main()"
    done = subprocess.run([sys.executable, "-c", command, "models"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_the_command_leaves_ctrl_c_as_it_was(monkeypatch):
    handlers = []
    monkeypatch.setattr(sys, "argv", ["dgconv", "models"])
    monkeypatch.setattr(cli, "main", lambda: handlers.append(signal.getsignal(signal.SIGINT)))
    for handler in (signal.default_int_handler, signal.SIG_IGN):
        before = signal.signal(signal.SIGINT, handler)
        try:
            dgconv_command.main()
        finally:
            signal.signal(signal.SIGINT, before)
    assert handlers == [signal.default_int_handler, signal.SIG_IGN]
