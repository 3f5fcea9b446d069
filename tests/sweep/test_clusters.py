"""Sweeps on Ray and as submitted jobs, with workers that die."""

import os
import signal
import threading
import time

import pytest

from regrow.sweep import ClusterError, Resources, SweepStoppedError, Update, run_all
from regrow.train import checkpoint
from regrow.train.run import run
from tests.sweep.test_run_all import QUICK, holder
from tests.train.processes import RECIPE, outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "regrow[dist]"')
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def kill_its_worker_once(kills):
    """A listener that kills the process of the first run as soon as it has a checkpoint."""

    def kill(folder):
        while not (folder / "checkpoint.safetensors").exists():
            time.sleep(0.01)
        os.kill(holder(folder), signal.SIGKILL)

    def listen(event):
        if isinstance(event, Update) and event.state == "started" and not kills:
            kills.append(event.job.folder)
            threading.Thread(target=kill, args=(event.job.folder,)).start()

    return listen


LONGER = RECIPE.changed(epochs=30, sparsity=0.5)


def test_runs_on_ray_survive_the_death_of_a_worker_and_equal_those_made_alone(tmp_path, ray):
    kills = []
    folders = run_all([LONGER, QUICK], tmp_path / "runs", on="ray", listener=kill_its_worker_once(kills))
    assert len(kills) == 1
    for recipe, folder in zip([LONGER, QUICK], folders, strict=True):
        run(recipe, tmp_path / "alone" / folder.name)
        assert outcome(folder) == outcome(tmp_path / "alone" / folder.name)


def test_a_sweep_on_ray_that_is_stopped_has_saved_its_runs(tmp_path, ray):
    endless = RECIPE.changed(epochs=100_000, sparsity=0.5)

    def interrupt(event):
        if isinstance(event, Update) and event.state == "epoch":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SweepStoppedError, match="stopped by SIGTERM"):
        run_all([endless], tmp_path, on="ray", listener=interrupt)
    (folder,) = tmp_path.iterdir()
    state = checkpoint.load(folder / "checkpoint.safetensors")
    assert state["trainer"]["step"] > 0


def test_runs_as_submitted_jobs_survive_the_death_of_one_and_equal_those_made_alone(tmp_path):
    pytest.importorskip("submitit", reason='submitit is not installed: pip install "regrow[dist]"')
    kills = []
    folders = run_all(
        [LONGER, QUICK],
        tmp_path / "runs",
        on="slurm",
        resources=Resources(address="local"),
        listener=kill_its_worker_once(kills),
    )
    assert len(kills) == 1
    for recipe, folder in zip([LONGER, QUICK], folders, strict=True):
        run(recipe, tmp_path / "alone" / folder.name)
        assert outcome(folder) == outcome(tmp_path / "alone" / folder.name)


def test_a_machine_without_slurm_raises_an_error_that_names_it(tmp_path):
    pytest.importorskip("submitit", reason='submitit is not installed: pip install "regrow[dist]"')
    with pytest.raises(ClusterError, match="cannot submit jobs to slurm"):
        run_all([QUICK], tmp_path, on="slurm")
