"""Processes that are killed: at every file operation of a run, and at random moments of everything that writes."""

import os
import random
import signal
import sys
import time

import pytest

from benchmarks.kills import CAMPAIGNS, await_end, check_run
from regrow.runs import stop
from regrow.runs.folder import InUseError, read_result
from regrow.train.distributed import launch
from tests.train.processes import RECIPE, context, outcome, start, train, wait_for

QUICK = RECIPE.changed(epochs=1, finetune_epochs=0, batch=256)
OPERATIONS = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir"}


def killed_at(operation):
    """Return a training that is killed when it is about to do its n-th operation on a file of the run."""

    def train_until(recipe, folder):
        count = 0

        def watch(event, arguments):
            nonlocal count
            if event in OPERATIONS and str(folder) in str(arguments[0]):
                count += 1
                if count == operation:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        train(recipe, folder, save_every=1000)

    return train_until


class KilledAt:
    """The same as a value that can be sent to another process."""

    def __init__(self, operation):
        self.operation = operation

    def __call__(self, recipe, folder):
        killed_at(self.operation)(recipe, folder)


def test_a_run_that_is_killed_at_each_of_its_file_operations_ends_with_the_same_bits(tmp_path):
    undisturbed = start(QUICK, tmp_path / "undisturbed")
    undisturbed.join()
    operation, folder = 0, tmp_path / "run"
    while read_result(folder) is None:
        operation += 1
        process = start(QUICK, folder, KilledAt(operation))
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        check_run(folder)
    assert operation > 20
    assert outcome(folder) == outcome(tmp_path / "undisturbed")
    assert not list(folder.glob(".*")), "what killed processes were writing is cleaned up"


@pytest.mark.parametrize(
    "campaign", ["checkpoint writing", "packing", pytest.param("two-writer packing", marks=pytest.mark.slow)]
)
def test_files_are_whole_whenever_their_writer_is_killed(tmp_path, campaign):
    assert CAMPAIGNS[campaign](tmp_path / "files", random.Random(campaign)).kills >= 5


@pytest.mark.slow
@pytest.mark.parametrize("campaign", ["training", "sweeping", "launching"])
def test_runs_end_with_the_same_bits_whenever_their_processes_are_killed(tmp_path, campaign):
    chance, kills, times = random.Random(campaign), 0, 0
    while kills < 3:  # a fast machine may be done before it is killed
        kills += CAMPAIGNS[campaign](tmp_path / str(times), chance).kills
        times += 1


def train_or_tell(recipe, folder):
    """Train, or end with code 3 if another process has the folder; one that comes late finds the run finished."""
    try:
        train(recipe, folder)
    except InUseError:
        sys.exit(3)


def test_only_one_of_many_processes_trains_in_a_folder_at_a_time(tmp_path):
    undisturbed = start(RECIPE, tmp_path / "undisturbed")
    undisturbed.join()
    folder = tmp_path / "run"
    processes = [start(RECIPE, folder, train_or_tell) for _ in range(4)]
    for process in processes:
        process.join()
    codes = {process.exitcode for process in processes}
    assert 0 in codes
    assert codes <= {0, 3}
    assert outcome(folder) == outcome(tmp_path / "undisturbed")


class Stuck:
    """Work that never ends and ignores the request to stop; it writes its process number first."""

    def __init__(self, path):
        self.path = path

    def __call__(self):
        stop.GRACE = 0.5
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        path = self.path.with_name(self.path.name + os.environ["RANK"])
        path.with_suffix(".part").write_text(str(os.getpid()))
        path.with_suffix(".part").rename(path)
        time.sleep(600)
        return 0


def launch_stuck(path):
    launch(Stuck(path), (), nproc=2, restarts=0)


def test_the_processes_of_a_killed_launcher_end_even_if_their_work_does_not(tmp_path):
    launcher = context().Process(target=launch_stuck, args=(tmp_path / "worker",))
    launcher.start()
    for rank in "01":
        wait_for(tmp_path / f"worker{rank}", launcher)
    launcher.kill()
    launcher.join()
    await_end([int((tmp_path / f"worker{rank}").read_text()) for rank in "01"])
