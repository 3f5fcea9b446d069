"""CPU count, atomic writes and the cache folder."""

from __future__ import annotations

import inspect
import os
import pty
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from regrow import system
from regrow.data.files import download_folder
from regrow.system import cache_folder, cores, shown_if_slow, write_atomically


def test_a_file_is_replaced_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for content in (b"first", b"second"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_names_the_file_and_keeps_its_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as refused:
        write_atomically(path, b"new")
    assert refused.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_kernels_and_data_have_one_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGROW_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert cache_folder() == tmp_path / "user" / "regrow"
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    assert download_folder("cifar10") == tmp_path / "chosen" / "data" / "cifar10"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes have no affinity here")
def test_only_the_cpus_of_this_process_count() -> None:
    ours = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(ours)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, ours)
    assert cores() == len(ours)


@pytest.mark.parametrize(("processors", "expected"), [(3, 3), (None, 1)])
def test_all_cpus_count_without_affinity(
    processors: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    assert cores() == expected


def on_a_terminal(monkeypatch, action):
    """Return what `action` writes to stderr if that is a terminal."""
    master, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        action()
        stderr.write("end")
        stderr.flush()
        shown = b""
        while not shown.endswith(b"end"):
            shown += os.read(master, 1000)
    os.close(master)
    return shown.decode().removesuffix("end")


def test_slow_work_is_shown_on_a_terminal_and_erased(monkeypatch, capsys):
    def slow():
        with shown_if_slow("compiling Net", after=0.01):
            time.sleep(0.3)

    assert on_a_terminal(monkeypatch, slow) == "\rcompiling Net … 0 s\r\x1b[K"
    slow()  # not a terminal
    assert capsys.readouterr().err == ""


def test_quick_work_is_not_shown(monkeypatch):
    def quick():
        with shown_if_slow("compiling Net"):
            pass

    assert on_a_terminal(monkeypatch, quick) == ""


def test_compiling_is_shown_after_two_seconds(monkeypatch):
    from regrow.engine import compiler

    assert inspect.signature(shown_if_slow).parameters["after"].default == 2.0
    monkeypatch.setattr(compiler, "shown_if_slow", partial(shown_if_slow, after=0.0))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    shown = on_a_terminal(monkeypatch, lambda: compiler.compile(model, torch.ones(1, 4), tune=False))
    assert shown.startswith("\rcompiling Sequential … ")


def test_a_commit_is_marked_only_if_the_code_differs(tmp_path, monkeypatch):
    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", tmp_path, *name, *arguments], check=True, stdout=subprocess.DEVNULL)

    for file in ("regrow/system.py", "results/records.jsonl"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("1\n")
    monkeypatch.setattr(system, "__file__", str(tmp_path / "regrow" / "system.py"))
    assert system.commit() is None  # not a checkout
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    clean = system.commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (tmp_path / "results" / "records.jsonl").write_text("2\n")
    assert system.commit() == clean
    (tmp_path / "regrow" / "system.py").write_text("2\n")
    assert system.commit() == f"{clean}-dirty"
