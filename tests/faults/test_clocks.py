"""Clocks that jump and processes that sleep: nothing but the times in the record depends on them."""

import os
import signal
import time

from regrow.sweep import Update, run_all
from regrow.train.run import run
from tests.sweep.test_run_all import holder
from tests.train.processes import RECIPE, outcome, start, wait_for

QUICK = RECIPE.changed(epochs=2, finetune_epochs=0, batch=256)


def train_with_a_jumping_clock(recipe, folder):
    """Train while the wall clock goes back by a day, or on by one, whenever it is read."""
    jumps = iter(range(10**9))
    time.time = lambda: 1.7e9 + (-1) ** next(jumps) * 86_400.0
    time.time_ns = lambda: int(time.time() * 1e9)
    run(recipe, folder, save_every=0)


def test_a_wall_clock_that_jumps_back_and_forth_changes_nothing(tmp_path):
    process = start(QUICK, tmp_path / "jumping", train_with_a_jumping_clock)
    process.join()
    assert process.exitcode == 0
    run(QUICK, tmp_path / "steady")
    assert outcome(tmp_path / "jumping") == outcome(tmp_path / "steady")


def test_a_run_with_file_times_in_the_future_resumes(tmp_path):
    folder, tomorrow = tmp_path / "run", time.time() + 86_400
    process = start(RECIPE, folder)
    wait_for(folder / "checkpoint.safetensors", process)
    process.kill()
    process.join()
    for path in folder.iterdir():
        os.utime(path, (tomorrow, tomorrow))
    run(RECIPE, folder)
    run(RECIPE, tmp_path / "alone")
    assert outcome(folder) == outcome(tmp_path / "alone")


def test_a_run_of_a_sweep_that_is_suspended_for_a_while_is_neither_lost_nor_repeated(tmp_path):
    events = []

    def suspend(event):
        events.append(event)
        if isinstance(event, Update) and event.state == "started":
            worker = holder(event.job.folder)
            os.kill(worker, signal.SIGSTOP)
            time.sleep(1)
            os.kill(worker, signal.SIGCONT)

    (folder,) = run_all([RECIPE], tmp_path / "runs", listener=suspend)
    assert [event.state for event in events[1:] if event.state != "epoch"] == ["started", "finished"]
    run(RECIPE, tmp_path / "alone")
    assert outcome(folder) == outcome(tmp_path / "alone")
