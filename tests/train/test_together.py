"""One run on several processes: real groups, real signals, real kills."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from regrow.runs.folder import read_metrics, read_result
from regrow.runs.recipe import load_recipe
from regrow.runs.stop import StoppedError
from regrow.train import checkpoint
from regrow.train.distributed import joined
from regrow.train.events import Stepped
from regrow.train.run import run
from tests.train.processes import RECIPE, outcome, stop_at_first_checkpoint, train, wait_for
from tests.train.test_run import METHODS, final_sparsity
from tests.train.together import run_together, start_together

QUICK = RECIPE.changed(epochs=2)


def train_all(recipes, folder):
    with joined("cpu"):
        for name, recipe in recipes.items():
            run(recipe, folder / name)


def test_every_method_trains_on_two_processes_and_writes_the_same_files_as_one(tmp_path):
    recipes = {method: QUICK.changed(method=method, every="paper", sparsity=0.75, threads=1) for method in METHODS}
    run_together(2, train_all, recipes, tmp_path)
    run(QUICK, tmp_path / "alone")
    alone = read_result(tmp_path / "alone")
    for method in METHODS:
        result = read_result(tmp_path / method)
        assert list(result) == list(alone)
        assert (result["processes"], alone["processes"]) == (2, 1)
        assert result["sparsity"] == pytest.approx(final_sparsity(method, 0.75), abs=5e-3)
        assert [list(record) for record in read_metrics(tmp_path / method)] == [
            list(record) for record in read_metrics(tmp_path / "alone")
        ]
        assert {p.name for p in (tmp_path / method).iterdir()} == {p.name for p in (tmp_path / "alone").iterdir()}


def test_the_batch_size_does_not_depend_on_the_number_of_processes(tmp_path):
    still = {"lr": 1e-12, "momentum": 0.0, "weight_decay": 0.0}
    recipe = QUICK.changed(epochs=1, finetune_epochs=0, batch=1297, every=1, **still)
    run(recipe, tmp_path / "one")
    run_together(3, train_all, {"three": recipe}, tmp_path)
    one, three = (read_metrics(tmp_path / name)[0] for name in ("one", "three"))
    assert (one["step"], three["step"]) == (1, 1)
    # Batch norm sees a third of the batch; all else is the same.
    assert three["loss"] == pytest.approx(one["loss"], rel=0.02)


def stop_in_between(recipe, folder, steps):
    """Train; at each of `steps` the first process is asked to stop, and all resume afterwards."""
    with joined("cpu") as world:
        for step in steps:
            with pytest.raises(StoppedError):
                run(recipe, folder, listeners=[asking(step)])
            assert world.rank or checkpoint.load(folder / "checkpoint.safetensors")["trainer"]["step"] == step
        run(recipe, folder)


def asking(step):
    def listener(event):
        if isinstance(event, Stepped) and event.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return listener


@pytest.mark.parametrize("size", [2, 3])
def test_all_processes_stop_with_one_and_resume_bit_identically(tmp_path, size):
    run_together(size, train_all, {"whole": QUICK}, tmp_path)
    run_together(size, stop_in_between, QUICK, tmp_path / "parts", [1, 30, 50])
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def stop_and_report(recipe, folder):
    try:
        train(recipe, folder, save_every=1000)
    except StoppedError as stopped:
        sys.exit(100 + stopped.signal)


def test_a_signal_to_any_process_stops_them_all_with_everything_saved(tmp_path):
    recipe = RECIPE.changed(epochs=1000)
    processes = start_together(3, stop_and_report, recipe, tmp_path / "run")
    wait_for(tmp_path / "run" / "checkpoint.safetensors", processes[0])
    os.kill(processes[2].pid, signal.SIGTERM)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [100 + signal.SIGTERM] * 3
    assert checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")["trainer"]["step"] > 21


def diverge(recipe, folder):
    from regrow.train.loop import DivergedError

    with pytest.raises(DivergedError, match=r"the loss is (nan|inf) at step"):
        run(recipe, folder)


def test_a_nan_loss_stops_all_processes(tmp_path):
    run_together(2, diverge, RECIPE.changed(lr=1e30), tmp_path / "run")


def be_refused(recipe, folder):
    from regrow.runs.folder import RunFolderError
    from regrow.train.distributed import Rank0Error

    error = RunFolderError if os.environ["RANK"] == "0" else Rank0Error
    with pytest.raises(error, match="holds another run"):
        run(recipe, folder)


def test_an_error_on_rank_0_stops_the_other_ranks(tmp_path):
    run(QUICK, tmp_path / "run")
    run_together(2, be_refused, QUICK.changed(lr=0.2), tmp_path / "run")


LONGER = ("digits", "--width", "4", "--epochs", "30", "--every", "4", "--threads", "1", "--save-every", "0.05")


def undisturbed(folder, parallel="ddp"):
    """Return the outcome of LONGER on two processes when nothing happens."""
    recipe = load_recipe("digits").changed(width=4, epochs=30, every=4, threads=1, parallel=parallel)
    run_together(2, train_all, {"whole": recipe}, folder)
    return outcome(folder / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_process_killed_at_a_random_moment_is_replaced_and_the_result_is_that_of_an_undisturbed_run(
    tmp_path, parallel
):
    seed = int(os.environ.get("REGROW_KILL_SEED", random.randrange(10**6)))
    print(f"REGROW_KILL_SEED={seed}")
    moments, folder = random.Random(seed), tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3"]
    command = [*torchrun, "-m", "regrow", "train", *LONGER, "--parallel", parallel, "--out", str(folder)]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    killed = 0
    while agent.poll() is None and killed < 2:
        workers = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True).stdout.split()
        if len(workers) == 2 and (folder / "checkpoint.safetensors").exists():
            time.sleep(moments.uniform(0, 0.5))
            os.kill(int(moments.choice(workers)), signal.SIGKILL)
            killed += 1
            time.sleep(1)
        time.sleep(0.02)
    said, _ = agent.communicate()
    assert agent.returncode == 0, said
    assert killed == 2, said
    assert "resumed after" in said
    assert outcome(folder)[:2] == undisturbed(tmp_path, parallel)[:2]


@pytest.mark.slow
def test_nproc_starts_the_processes_and_passes_a_signal_on(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "regrow", "train", *LONGER, "--nproc", "2", "--out", str(folder)]
    stop_at_first_checkpoint(command, folder)
    again = subprocess.run([*command[:4], "--resume", folder, "--nproc", "2"], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "resumed after" in again.stdout
    assert outcome(folder)[0] == undisturbed(tmp_path)[0]
    assert load_file(folder / "model.safetensors")
