"""How commands end: a finished run exits 0 whatever shows it, and faults of the machine are one line."""

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from regrow import data, models, save
from regrow.cli import errors
from regrow.data import DataError, files
from regrow.data.mnist import FASHION_MNIST, REMOTES
from regrow.runs.folder import CHECKPOINT, read_result
from regrow.runs.stop import stop_requests
from regrow.system import write_atomically
from tests.faults.test_bounds import refused

QUICK = ["train", "digits", "--model", "small", "--width", "2", "--epochs", "1", "--batch", "512", "--threads", "1"]


def command(*arguments, prefix="", redirect="", **environment):
    """Run a command of regrow through a shell."""
    words = " ".join(f"'{argument}'" for argument in arguments)
    return subprocess.run(
        ["bash", "-c", f"{prefix} '{sys.executable}' -m regrow {words} {redirect}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-", ">&- 2>&- <&-", "2>/dev/full >/dev/full", "| true"])
def test_a_finished_run_exits_0_whatever_happens_to_its_output(tmp_path, redirect):
    ended = command(*QUICK, "--out", tmp_path / "run", prefix="set -o pipefail;", redirect=redirect)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert redirect != "| true" or ended.stderr == ""
    assert read_result(tmp_path / "run") is not None


def test_a_finished_run_exits_0_if_plots_and_curves_cannot_be_made(tmp_path):
    (tmp_path / "broken" / "tensorboard").mkdir(parents=True)
    (tmp_path / "broken" / "tensorboard" / "__init__.py").write_text("raise MemoryError")
    (tmp_path / "broken" / "altair").mkdir()
    (tmp_path / "broken" / "altair" / "__init__.py").write_text("import os; os.abort()")
    path = f"{tmp_path / 'broken'}:{os.environ.get('PYTHONPATH', '')}"
    ended = command(*QUICK, "--out", tmp_path / "run", PYTHONPATH=path)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("The run continues without it.") == 2
    assert read_result(tmp_path / "run") is not None


FEW = [6, *(pytest.param(count, marks=pytest.mark.slow) for count in (5, 10, 14))]


@pytest.mark.parametrize("files", FEW)
def test_a_run_with_few_file_descriptors_finishes_with_0_or_ends_in_one_line(tmp_path, files):
    """With 6, the model is trained and saved, and nothing is left for plots and curves; with 5, nothing can be read."""
    ended = command(*QUICK, "--out", tmp_path / "run", prefix=f"ulimit -n {files};")
    finished = (tmp_path / "run" / "result.json").exists()
    assert "Traceback" not in ended.stderr
    assert (ended.returncode == 0) == finished, ended.stderr
    assert finished == (files >= 6)
    if finished:
        assert "The run continues without it." in ended.stderr
    else:
        refused(ended, "Too many open files")


def test_a_command_whose_output_is_its_result_fails_in_one_line_if_it_cannot_be_written(tmp_path):
    save(models.build("small"), tmp_path / "a.regrow")
    ended = command("inspect", tmp_path / "a.regrow", redirect=">/dev/full")
    refused(ended, "No space left on device")


@pytest.mark.parametrize("environment", [{"HOME": "/nonexistent"}, {"TMPDIR": "/nonexistent", "HOME": ""}])
def test_a_run_needs_neither_a_home_nor_a_temporary_folder(tmp_path, environment):
    ended = command(*QUICK, "--out", tmp_path / "run", **environment)
    assert ended.returncode == 0, ended.stderr


def test_an_unknown_home_is_one_line(monkeypatch, capsys):
    monkeypatch.delenv("REGROW_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(OSError, match=r"the home folder is unknown\. Set REGROW_CACHE") as caught:
        files.download_folder("cifar10")
    assert errors.explain(caught.value) == 1
    assert capsys.readouterr().err.startswith("regrow: the home folder is unknown")


def test_a_compiler_that_builds_nothing_is_named(tmp_path, monkeypatch):
    from regrow.engine.codegen.build import NoCompilerError, call_compiler

    with pytest.raises(NoCompilerError, match="/bin/true built nothing: is it a C compiler"):
        call_compiler(("/bin/true",), ["-o", str(tmp_path / "library")])


@pytest.mark.slow
def test_a_benchmark_with_a_compiler_that_builds_nothing_says_so_and_uses_torch(tmp_path):
    save(models.build("small", width=2), tmp_path / "a.regrow")
    ended = command("bench", tmp_path / "a.regrow", CC="/bin/true", REGROW_CACHE=str(tmp_path / "cache"))
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Without a C compiler, the engine uses torch" in ended.stdout


def test_the_folder_of_a_killed_build_is_removed_by_a_later_one_and_that_of_a_running_one_stays(tmp_path):
    from regrow.engine.codegen import build

    killed, running, other = (tmp_path / name for name in (f"{build._BUILD}killed", f"{build._BUILD}running", "other"))
    for each in (killed, running, other):
        each.mkdir()
        (each / "kernels.c").touch()
    long_ago = time.time() - 7200
    for each in (killed, other):
        os.utime(each, (long_ago, long_ago))
    build._remove_abandoned(tmp_path)  # every build does this first
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([other.name, running.name])


def test_sighup_saves_like_sigterm_and_stays_ignored_under_nohup():
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal == signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_saves_the_run(tmp_path):
    arguments = [sys.executable, "-m", "regrow", *QUICK, "--epochs", "100000", "--out", str(tmp_path / "run")]
    process = subprocess.Popen([*arguments, "--save-every", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not (tmp_path / "run" / CHECKPOINT).exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 129
    assert b"stopped by SIGHUP" in said


def test_partial_files_of_killed_writers_are_removed_and_those_of_living_ones_stay(tmp_path):
    path, old = tmp_path / "model.regrow", time.time() - 60
    abandoned, living, other = (
        tmp_path / f".{name}" for name in ("model.regrow.0123abcd", "model.regrow.4567abcd", "x")
    )
    for each in (abandoned, living, other):
        each.write_bytes(b"part")
        os.utime(each, (old, old))
    with living.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomically(path, b"whole")
    assert sorted(each.name for each in tmp_path.iterdir()) == [living.name, other.name, path.name]
    assert path.read_bytes() == b"whole"


def test_a_download_that_has_changed_since_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path))
    monkeypatch.delenv("REGROW_DATA", raising=False)
    folder = files.download_folder("fashion-mnist")
    folder.mkdir(parents=True)
    for remote in REMOTES["fashion-mnist"]:
        (folder / remote.name).write_bytes(b"something else")
    with pytest.raises(DataError, match=r"has changed since it was downloaded: its SHA-256 is wrong"):
        data.load("fashion-mnist", "train")
    with pytest.raises(DataError, match=r"its SHA-256 is wrong"):
        files.fetch(FASHION_MNIST.info, REMOTES["fashion-mnist"])


def test_decoded_images_that_were_changed_in_the_cache_are_decoded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "source").write_bytes(b"images")
    right = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert (files.cached([tmp_path / "source"], (3, 4), lambda: right) == right).all()
    [stored] = (tmp_path / "cache" / "decoded").iterdir()
    assert stored.read_bytes() == hashlib.sha256(right).digest() + right.tobytes()
    assert (files.cached([tmp_path / "source"], (3, 4), lambda: right * 0) == right).all()
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    assert (files.cached([tmp_path / "source"], (3, 4), lambda: right) == right).all()
