"""A sweep survives failures, deaths and interruptions, and repeats nothing."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from regrow.runs.folder import locked, read_recipe, read_result
from regrow.runs.recipe import UsageError
from regrow.sweep import Began, SweepError, SweepStoppedError, Update, run_all
from regrow.train.run import run
from tests.train.processes import RECIPE, outcome

QUICK = RECIPE.changed(epochs=1, finetune_epochs=0, batch=256)


def holder(folder, seconds=60):
    """The process that has the run folder, once there is one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lock = folder / "lock"
        found = re.search(r"process (\d+)", lock.read_text() if lock.exists() else "")
        if found and alive(int(found[1])):
            return int(found[1])
        time.sleep(0.005)
    raise AssertionError(f"nobody took {folder}")


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ends(process, seconds=60):
    deadline = time.monotonic() + seconds
    while alive(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(process)


def test_runs_are_trained_once_and_equal_those_made_alone(tmp_path):
    recipes, events = [QUICK.changed(seed=seed) for seed in (0, 1, 0)], []
    folders = run_all(recipes, tmp_path / "runs", workers=2, listener=events.append)
    assert [folder.name for folder in folders] == [f"{recipe.name()}-{recipe.key()[:8]}" for recipe in recipes]
    for recipe, folder in zip(recipes, folders, strict=True):
        run(recipe, tmp_path / "alone" / folder.name)
        assert outcome(folder) == outcome(tmp_path / "alone" / folder.name)
    assert sorted(event.state for event in events if isinstance(event, Update) and event.state != "epoch") == [
        *["finished"] * 2,
        *["started"] * 2,
    ]
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    again = []
    assert run_all(recipes, tmp_path / "runs", listener=again.append) == folders
    assert again == [Began(again[0].jobs, finished=2, workers=0)]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == written


def test_a_run_has_one_thread_unless_its_recipe_or_its_folder_says_otherwise(tmp_path):
    undecided = QUICK.changed(threads=None)
    (folder,) = run_all([undecided], tmp_path)
    assert read_recipe(folder).threads == 1
    (folder,) = run_all([undecided.changed(seed=1, threads=2)], tmp_path)
    assert read_recipe(folder).threads == 2


def test_failures_are_reported_when_all_others_are_finished(tmp_path):
    diverging, impossible = QUICK.changed(lr=1e30, epochs=2), QUICK.changed(targets=("conv9",))
    recipes, events = [diverging, impossible, QUICK], []
    with pytest.raises(SweepError) as failed:
        run_all(recipes, tmp_path, workers=1, listener=events.append)
    assert "2 of 3 runs failed, the others are finished" in str(failed.value)
    reasons = list(failed.value.failed.values())
    assert "at step" in reasons[0]
    assert "no weight matches target 'conv9'" in reasons[1]
    assert [event.state for event in events[1:] if event.state != "epoch"][-1] == "finished"
    assert sum(read_result(folder) is not None for folder in tmp_path.iterdir()) == 1


def test_a_run_whose_process_is_killed_is_retried_and_ends_with_the_same_bits(tmp_path):
    kills, retried = [], []

    def kill_twice(event):
        if isinstance(event, Update) and event.state == "started" and len(kills) < 2:
            threading.Thread(target=lambda: kills.append(os.kill(holder(event.job.folder), signal.SIGKILL))).start()
        if isinstance(event, Update) and event.state == "retrying":
            retried.append(event.text)

    (folder,) = run_all([RECIPE], tmp_path / "runs", listener=kill_twice)
    assert len(kills) == len(retried) == 2
    assert "SIGKILL" in retried[0]
    run(RECIPE, tmp_path / "alone")
    assert outcome(folder) == outcome(tmp_path / "alone")


def test_a_run_that_dies_repeatedly_without_a_new_checkpoint_fails_and_the_others_do_not(tmp_path):
    doomed = RECIPE.changed(epochs=10_000)

    def kill(event):
        if isinstance(event, Update) and event.state == "started" and event.job.recipe == doomed:
            threading.Thread(target=lambda: os.kill(holder(event.job.folder), signal.SIGKILL)).start()

    with pytest.raises(SweepError, match=r"SIGKILL.* 2 times without a new checkpoint") as failed:
        run_all([doomed, QUICK], tmp_path, retries=1, listener=kill)
    assert len(failed.value.failed) == 1


def test_a_run_in_use_by_another_process_is_waited_for(tmp_path):
    events, folder = [], tmp_path / f"{QUICK.name()}-{QUICK.key()[:8]}"
    folder.mkdir()
    release = threading.Event()

    def note(event):
        events.append(event)
        if isinstance(event, Update) and event.state == "busy":
            release.set()

    def hold():
        with locked(folder):
            release.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    holder(folder)
    run_all([QUICK], tmp_path, listener=note)
    other.join()
    states = [event.state for event in events[1:] if event.state != "epoch"]
    assert states[:2] == ["started", "busy"]
    assert states[-1] == "finished"
    assert f"in use by process {os.getpid()}" in events[2].text


@pytest.mark.slow
def test_killing_the_driver_stops_its_workers_and_the_next_driver_resumes(tmp_path):
    long = RECIPE.changed(epochs=12, sparsity=0.5)
    (tmp_path / "sweep.toml").write_text(long.to_toml() + "[grid]\nseed = [0, 1]\n", encoding="utf-8")
    folders = [tmp_path / "runs" / f"{r.name()}-{r.key()[:8]}" for r in (long, long.changed(seed=1))]
    command = [sys.executable, "-m", "regrow", "sweep", tmp_path / "sweep.toml", "--out", tmp_path / "runs"]
    driver = subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.DEVNULL)
    workers = [holder(folder) for folder in folders]
    while not (folders[0] / "checkpoint.safetensors").exists():
        time.sleep(0.005)
    driver.kill()
    driver.wait()
    assert all(ends(worker) for worker in workers)
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "all finished" in shown
    run(long, tmp_path / "alone")
    assert outcome(folders[0]) == outcome(tmp_path / "alone")
    assert read_result(folders[1]) is not None


def test_a_signal_lets_the_runs_save_and_prints_how_to_resume(tmp_path):
    endless = RECIPE.changed(epochs=100_000)

    def interrupt(event):
        if isinstance(event, Update) and event.state == "epoch":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SweepStoppedError, match="stopped by SIGTERM with 0 of 1 runs finished") as stopped:
        run_all([endless], tmp_path, listener=interrupt)
    assert stopped.value.signal == signal.SIGTERM
    (folder,) = tmp_path.iterdir()
    assert (folder / "checkpoint.safetensors").is_file()
    with locked(folder):
        pass  # nobody works on it any more


def test_an_unknown_executor_is_an_error_with_a_suggestion(tmp_path):
    with pytest.raises(UsageError, match=r"got 'slrm'\. Did you mean 'slurm'"):
        run_all([QUICK], tmp_path, on="slrm")
