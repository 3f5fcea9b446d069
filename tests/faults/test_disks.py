"""Disks that are full and folders that are read-only: what was written stays, and the error says what to do."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys

import pytest
import safetensors

from regrow.runs.folder import RunFolderError
from regrow.train.run import run
from tests.train.processes import RECIPE, context, outcome

QUICK = RECIPE.changed(epochs=3, finetune_epochs=0, batch=256, width=16)
NOBODY, NEW_MOUNTS, FORBIDDEN = 65534, 0x00020000, 77


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(QUICK, folder)
    return folder


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def elsewhere(target, *arguments):
    """Run `target` in another process; skip where what it needs is forbidden."""
    process = context().Process(target=target, args=arguments)
    process.start()
    process.join()
    if process.exitcode == FORBIDDEN:
        pytest.skip("needs root, to mount a small file system or become nobody, and an environment nobody can read")
    assert process.exitcode == 0


def mount(*arguments):
    if subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False).returncode:
        sys.exit(FORBIDDEN)


def mount_small(folder, options):
    """Put a small file system at `folder` that only this process sees."""
    if ctypes.CDLL(None).unshare(NEW_MOUNTS):
        sys.exit(FORBIDDEN)
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "-o", options, "none", folder)


def command(said, *arguments):
    """Run a command of regrow, note what it said, and return its code."""
    from regrow.cli import main

    with said.open("a") as file, contextlib.redirect_stderr(file), contextlib.redirect_stdout(file):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            return ended.code or 0


def train_without_room_and_with_it(disk, room, saved):
    mount_small(disk, f"size={room}k")
    with pytest.raises(RunFolderError, match=r"No space left on device\. The disk is full: free some space"):
        run(QUICK, disk / "run")
    mount("-o", "remount,size=64m", disk)
    run(QUICK, disk / "run")
    shutil.copytree(disk / "run", saved)


def test_a_run_on_a_full_disk_stops_with_an_error_and_resumes_when_space_is_freed(tmp_path, disk, finished):
    room = sum(path.stat().st_size for path in finished.iterdir()) // 2048
    elsewhere(train_without_room_and_with_it, disk, room, tmp_path / "saved")
    assert outcome(tmp_path / "saved") == outcome(finished)


def pack_without_room(finished, disk, said):
    mount_small(disk, "size=4k")
    (disk / "model.regrow").write_text("precious")
    assert command(said, "export", finished, "--out", disk / "model.regrow") == 1
    assert [path.name for path in disk.iterdir()] == ["model.regrow"]
    assert (disk / "model.regrow").read_text() == "precious"


def test_packing_onto_a_full_disk_is_an_error_and_leaves_the_old_file_unchanged(tmp_path, disk, finished):
    elsewhere(pack_without_room, finished, disk, tmp_path / "said")
    assert f"cannot write {disk / 'model.regrow'}: No space left on device" in (tmp_path / "said").read_text()


def write_where_nothing_can_be_written(disk, said, *arguments):
    mount_small(disk, "size=64k")
    mount("-o", "remount,ro", disk)
    assert command(said, *arguments) == 1


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("sweep", "report")]


@pytest.mark.parametrize("name", ["train", "export", *SLOW])
def test_a_read_only_folder_is_named(tmp_path, disk, finished, name):
    arguments = {
        "train": ("train", finished / "recipe.toml", "--out", disk / "run"),
        "sweep": ("sweep", finished / "recipe.toml", "--out", disk / "run"),
        "export": ("export", finished, "--out", disk / "model.regrow"),
        "report": ("report", finished, "-o", disk / "report.html"),
    }
    elsewhere(write_where_nothing_can_be_written, disk, tmp_path / "said", *arguments[name])
    said = (tmp_path / "said").read_text()
    assert f"cannot write {disk}" in said
    assert "Read-only file system" in said


def train_as_nobody(folder):
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    except PermissionError:
        sys.exit(FORBIDDEN)
    if not os.access(safetensors.__file__, os.R_OK):  # the environment is in a private folder, such as a home
        sys.exit(FORBIDDEN)
    with pytest.raises(RunFolderError, match=r"cannot write .*run: Permission denied\. The folder is not writable"):
        run(QUICK, folder)


def test_a_folder_of_somebody_else_is_named(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    elsewhere(train_as_nobody, tmp_path / "theirs" / "run")
