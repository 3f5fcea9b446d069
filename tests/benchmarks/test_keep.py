"""Records and the long training's checkpoint move between a queue's folder and the repository, and none is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import collect, keep, start
from regrow.runs.folder import locked
from regrow.runs.recipe import Recipe
from regrow.system import cpu_name
from regrow.train.run import run
from reproduce.migrate import FIELDS

FILE = keep.RECORDS[0]


def git(checkout: Path, *arguments: str | Path) -> str:
    return keep.git(checkout, "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments)


def commit(checkout: Path) -> None:
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "a commit")


def write(checkout: Path, *keys: str) -> None:
    collect.write({key: {"name": "run", "key": key} for key in keys}, checkout / FILE)


def keys(checkout: Path) -> set[str]:
    return set(collect.read(checkout / FILE))


def train(run: Path, epochs: int) -> None:
    """Put the files of a training after some epochs into a folder."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "checkpoint.pt").write_text(f"state after epoch {epochs}")
    (run / "metrics.jsonl").write_text("".join(f'{{"epoch": {epoch + 1}}}\n' for epoch in range(epochs)))
    (run / "recipe.toml").write_text("the recipe")


def machines(*lines: tuple[int, str]) -> str:
    return "".join(json.dumps({"epoch": epoch, "cpu": cpu}) + "\n" for epoch, cpu in lines)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with the record `old`."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    (root / "code.py").write_text("1")
    (root / "removed.py").write_text("some code")
    write(root, "old")
    commit(root)
    return root


@pytest.fixture
def folder(tmp_path: Path, root: Path) -> Path:
    """A queue's folder with a clone of `root`."""
    folder = tmp_path / "queue"
    folder.mkdir()
    git(root, "clone", "-q", root, folder / "code")
    (folder / "machines.jsonl").write_text(machines((0, "one")))
    return folder


def test_a_harvest_adds_new_records_and_keeps_those_that_only_the_repository_has(root: Path, folder: Path) -> None:
    write(folder / "code", "old", "new")
    write(root, "old", "from elsewhere")

    assert keep.harvest(folder, root) == 1
    assert keys(root) == {"old", "new", "from elsewhere"}

    before = (root / FILE).read_bytes()
    assert keep.harvest(folder, root) == 0
    assert (root / FILE).read_bytes() == before


def test_a_harvest_does_not_bring_back_a_record_that_the_repository_removed(root: Path, folder: Path) -> None:
    write(folder / "code", "old", "new")
    write(root)

    keep.harvest(folder, root)

    assert keys(root) == {"new"}


def test_a_record_in_old_names_is_harvested_with_the_present_ones(root: Path, folder: Path) -> None:
    recipe = Recipe(lr_drops=(0.3,), every="paper")
    old = {"name": "run", "key": "old name", "recipe": {"drops": [0.3]}}
    (folder / "code" / FILE).write_text(json.dumps(old) + "\n")

    keep.harvest(folder, root)

    assert collect.read(root / FILE)[recipe.key()]["recipe"]["lr_drops"] == [0.3]


def test_without_a_long_training_or_a_checkpoint_nothing_is_kept_and_nothing_fails(root, folder, capsys) -> None:
    keep.keep_long(folder, root)
    keep.long_run(folder).mkdir(parents=True)  # just started
    keep.keep_long(folder, root)

    assert not (root / keep.KEPT).exists()
    assert capsys.readouterr().out.count("has no checkpoint") == 2


def test_the_newest_checkpoint_of_the_long_training_replaces_the_kept_one(root: Path, folder: Path) -> None:
    train(keep.long_run(folder), 3)
    keep.keep_long(folder, root)
    train(keep.long_run(folder), 5)
    keep.keep_long(folder, root)

    kept = root / keep.KEPT
    assert {file.name: file.read_text() for file in kept.iterdir()} == {
        "checkpoint.pt": "state after epoch 5",
        "metrics.jsonl": (keep.long_run(folder) / "metrics.jsonl").read_text(),
        "recipe.txt": "the recipe",
        "machines.jsonl": machines((0, "one")),
    }
    assert [file.name for file in kept.parent.iterdir()] == ["long"]


def test_an_older_or_equally_old_training_does_not_replace_the_kept_checkpoint(root, folder, capsys) -> None:
    train(root / keep.KEPT, 5)

    train(keep.long_run(folder), 4)
    with pytest.raises(SystemExit, match=r"is at epoch 4, but the kept checkpoint is newer \(epoch 5\)"):
        keep.keep_long(folder, root)
    train(keep.long_run(folder), 5)
    (keep.long_run(folder) / "checkpoint.pt").write_text("a few steps later")
    keep.keep_long(folder, root)

    assert (root / keep.KEPT / "checkpoint.pt").read_text() == "state after epoch 5"
    assert "that of epoch 5 already" in capsys.readouterr().out


def test_ten_commits_may_change_the_kept_checkpoint(root: Path, folder: Path, capsys) -> None:
    for epoch in range(1, 11):
        train(keep.long_run(folder), epoch)
        keep.keep_long(folder, root)
        commit(root)
    train(keep.long_run(folder), 11)

    with pytest.raises(SystemExit, match="stays at epoch 10"):
        keep.keep_long(folder, root)

    assert "10 of 10 commits" in capsys.readouterr().out
    assert keep.epochs(root / keep.KEPT) == 10


def finish(folder: Path) -> dict[str, Any]:
    """Finish a training of three epochs like the code of the long training, and return its result."""
    path = keep.long_run(folder)
    result = run(Recipe(model="small", width=4, epochs=3, batch=256, limit=256, every=1, threads=1), path)
    names = {new: old for old, new in FIELDS.items()}
    old = {**result, "recipe": {names.get(name, name): value for name, value in result["recipe"].items()}}
    (path / "result.json").write_text(json.dumps(old))
    environment = {**json.loads((path / "environment.json").read_text()), "cpu": "AMD EPYC"}
    del environment["commit"]
    (path / "environment.json").write_text(json.dumps(environment))
    git(folder / "code", "clone", "-q", folder / "code", folder / "long")
    return result


def test_the_finished_long_training_is_recorded_with_its_commit_and_machines(root: Path, folder: Path) -> None:
    result = finish(folder)
    lines = machines((0, "one"), (1, "one"), (2, "not used"), (2, "two"), (3, "looked at it"))
    (folder / "machines.jsonl").write_text(lines)
    train(root / keep.KEPT, 2)

    keep.keep_long(folder, root)

    [record] = collect.read(root / keep.LONG).values()
    assert (record["key"], record["top1"]) == (result["key"], result["top1"])
    assert record["machines"] == [{"epoch": 0, "cpu": "one"}, {"epoch": 2, "cpu": "two"}]
    assert record["environment"]["cpu"] == "one, then two"
    assert record["environment"]["commit"] == git(root, "rev-parse", "HEAD")[:12]
    assert not (root / keep.KEPT).exists()


def test_a_training_that_was_recorded_elsewhere_is_not_kept_again(root: Path, folder: Path) -> None:
    key = keep.paper_cell("dpf", 0.9).recipes[0].key()
    collect.write({key: {"name": "run", "key": key}}, root / keep.LONG)
    train(keep.long_run(folder), 5)

    keep.keep_long(folder, root)

    assert not (root / keep.KEPT).exists()


def test_a_started_folder_has_the_present_code_and_the_records_of_both_sides(root: Path, folder: Path) -> None:
    write(folder / "code", "old", "not harvested")
    (root / "code.py").write_text("2")
    (root / "removed.py").rename(root / "moved.py")
    write(root, "committed")  # and `old` removed
    commit(root)
    write(root, "committed", "not committed")

    for _ in range(2):
        start.update(folder / "code", root)

        assert (folder / "code" / "code.py").read_text() == "2"
        assert not (folder / "code" / "removed.py").exists()
        assert (folder / "code" / "moved.py").exists()
        assert git(folder / "code", "rev-parse", "HEAD") == git(root, "rev-parse", "HEAD")
        assert keys(folder / "code") == {"committed", "not committed", "not harvested"}


def test_a_clone_with_commits_of_its_own_gets_records_and_keeps_its_code(root: Path, folder: Path) -> None:
    write(folder / "code", "old", "mine")
    commit(folder / "code")
    (root / "code.py").write_text("2")
    commit(root)
    write(root, "old", "yours")

    start.update(folder / "code", root)

    assert (folder / "code" / "code.py").read_text() == "1"
    assert keys(folder / "code") == {"old", "mine", "yours"}


def test_a_newer_kept_checkpoint_is_restored_and_an_older_one_is_not(root: Path, folder: Path) -> None:
    train(root / keep.KEPT, 5)
    (root / keep.KEPT / "recipe.toml").rename(root / keep.KEPT / "recipe.txt")
    (root / keep.KEPT / "machines.jsonl").write_text(machines((0, "elsewhere")))
    train(keep.long_run(folder), 3)

    start.restore(folder, root)

    assert (keep.long_run(folder) / "checkpoint.pt").read_text() == "state after epoch 5"
    assert (keep.long_run(folder) / "recipe.toml").read_text() == "the recipe"
    noted = [json.loads(line) for line in (folder / "machines.jsonl").read_text().splitlines()]
    assert [(each["epoch"], each["cpu"]) for each in noted] == [(0, "elsewhere"), (5, cpu_name())]

    train(keep.long_run(folder), 6)
    for _ in range(2):  # the second start is the same machine at the same epoch
        start.restore(folder, root)

        assert (keep.long_run(folder) / "checkpoint.pt").read_text() == "state after epoch 6"
        assert len((folder / "machines.jsonl").read_text().splitlines()) == 3


def test_an_interrupted_clone_or_installation_is_repaired(root: Path, tmp_path: Path) -> None:
    (root / "Makefile").write_text("install:\n\ttest -f .venv || cp code.py .venv\n")
    commit(root)
    (tmp_path / ".long.partial").mkdir()
    (tmp_path / ".long.partial" / "half").touch()

    start.clone(root, tmp_path / "long", "HEAD")
    (tmp_path / "long" / ".venv").unlink()
    (tmp_path / "long" / "code.py").unlink()
    git(tmp_path / "long", "checkout", "-q", "--", ".")
    start.clone(root, tmp_path / "long", "HEAD")

    assert (tmp_path / "long" / ".venv").read_text() == "1"
    assert not (tmp_path / ".long.partial").exists()


def test_a_failed_training_is_an_error_after_the_others_have_ended(folder: Path) -> None:
    (folder / "long").mkdir()
    fails, works = ([sys.executable, "-c", text] for text in ("exit('no data')", "open('done', 'w')"))

    with pytest.raises(SystemExit, match=r"Failed, see .*code\.log\."):
        start.train(folder, {"code": fails, "long": works})

    assert (folder / "code.log").read_text() == "no data\n"
    assert (folder / "long" / "done").exists()


def test_a_signal_lets_the_trainings_save_their_state(folder: Path) -> None:
    training = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
        "open('begun', 'w'); time.sleep(600)"
    )
    supervisor = (
        "import pathlib, sys; from benchmarks.start import train\n"
        f"train(pathlib.Path({str(folder)!r}), {{'code': [sys.executable, '-c', {training!r}]}})"
    )
    process = subprocess.Popen([sys.executable, "-c", supervisor], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (folder / "code" / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)

    assert errors == "Stopped. The same command continues.\n"
    assert process.returncode == 1
    assert (folder / "code.log").read_text() == "saved\n"


def test_a_folder_with_a_living_training_is_left_alone(folder: Path) -> None:
    training = folder / "runs" / "cpu" / "one"
    training.mkdir(parents=True)
    before = git(folder / "code", "rev-parse", "HEAD")

    with locked(training):
        command = [sys.executable, "-m", "benchmarks.start", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert f"{training} is in use by process" in done.stderr
    assert git(folder / "code", "rev-parse", "HEAD") == before
    assert (folder / "machines.jsonl").read_text() == machines((0, "one"))
