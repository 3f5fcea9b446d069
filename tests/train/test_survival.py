"""Runs that are killed, stopped or out of disk space resume and end with the same bits."""

import io
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from regrow.runs.folder import RunFolderError, locked, read_divergence, read_metrics, read_result
from regrow.runs.stop import StoppedError
from regrow.train import checkpoint
from regrow.train.display import Display
from regrow.train.loop import DivergedError
from regrow.train.run import run
from tests.train.processes import RECIPE, outcome, start, stop_at_first_checkpoint, train, wait_for
from tests.train.test_run import METHODS


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The outcome of RECIPE when nothing happens to it."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    process = start(RECIPE, folder)
    process.join()
    assert process.exitcode == 0
    return outcome(folder)


def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_bits(tmp_path, uninterrupted):
    folder, kills = tmp_path / "run", 0
    seed = int(os.environ.get("REGROW_KILL_SEED", random.randrange(10**6)))
    print(f"REGROW_KILL_SEED={seed}")
    moments = random.Random(seed)
    while read_result(folder) is None:
        process = start(RECIPE, folder)
        wait_for(folder / "recipe.toml", process)
        if kills < 10:
            process.join(moments.uniform(0.0, 0.3))
        else:
            process.join()
        if process.is_alive():
            process.kill()
            process.join()
            kills += 1
        else:
            assert process.exitcode == 0
    assert kills >= 3
    assert outcome(folder) == uninterrupted
    assert not list(folder.glob(".*")), "what killed processes were writing is cleaned up"


def stop_and_report(recipe, folder):
    """Train until a signal, and end with the code that tells what `run` raised."""
    from regrow.runs.stop import StoppedError

    try:
        train(recipe, folder, save_every=1000)
    except StoppedError as stopped:
        sys.exit(100 + stopped.signal)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_state_and_the_run_resumes_from_it(tmp_path, uninterrupted, number):
    folder = tmp_path / "run"
    process = start(RECIPE, folder, stop_and_report)
    wait_for(folder / "checkpoint.safetensors", process)
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == 100 + number
    saved = checkpoint.load(folder / "checkpoint.safetensors")["trainer"]["step"]
    assert saved > 21, "more than the first epoch, after which the first checkpoint was made"
    train(RECIPE, folder)
    assert outcome(folder) == uninterrupted


def test_the_command_prints_how_to_resume_and_does_so(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "regrow", "train", "digits", "--epochs", "400", "--threads", "1", "--out", folder]
    stop_at_first_checkpoint(command, folder)
    before = checkpoint.load(folder / "checkpoint.safetensors")["trainer"]["step"]
    again = subprocess.Popen([*command[:4], "--resume", folder], stdout=subprocess.PIPE, text=True)
    resumed = next((line for line in again.stdout if line.startswith("resumed")), "")
    again.kill()
    again.communicate()
    assert f"(step {before:,})" in resumed


def test_the_error_of_a_second_process_names_the_first(tmp_path):
    in_use = rf"is in use by process {os.getpid()} \(since \d\d:\d\d\)"
    with locked(tmp_path), pytest.raises(RunFolderError, match=in_use):
        run(RECIPE, tmp_path)
    with locked(tmp_path):
        pass  # and it is free again


def train_without_room(recipe, folder):
    """Train where no file may become larger than 16 kB, as on a disk that is almost full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))
    try:
        train(recipe, folder)
    except RunFolderError as error:
        (folder / "said.txt").write_text(str(error))
        sys.exit(3)


def test_a_file_that_cannot_be_written_is_an_error_that_names_it_and_nothing_is_lost(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    process = start(RECIPE, folder, train_without_room)
    process.join()
    assert process.exitcode == 3
    said = folder / "said.txt"
    assert "checkpoint.safetensors: File too large" in said.read_text()
    said.unlink()
    train(RECIPE, folder)
    assert outcome(folder) == uninterrupted


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_writable_is_named(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(RunFolderError, match="not writable: choose another with --out"):
        run(RECIPE, tmp_path / "locked" / "run")


def test_a_folder_whose_name_is_taken_by_a_file_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot write .*run: File exists"):
        run(RECIPE, tmp_path / "run")


def test_a_nan_loss_stops_with_the_step_and_keeps_the_last_good_checkpoint(tmp_path):
    # The learning rate explodes at the drop after half of training.
    recipe = RECIPE.changed(lr_drop_factor=1e30, lr_drops=[0.5])
    with pytest.raises(
        DivergedError, match=r"at step \d+ \(epoch 3, .*The last good checkpoint is .*checkpoint\.safetensors"
    ):
        run(recipe, tmp_path / "run", save_every=0)
    state = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")["trainer"]
    assert state["step"] >= 2 * 21
    assert all(bool(torch.isfinite(weight).all()) for weight in state["model"].values())


def test_a_run_that_diverges_leaves_a_record_and_its_result_takes_the_records_place(tmp_path):
    recipe = RECIPE.changed(lr_drop_factor=1e30, lr_drops=[0.5])
    with pytest.raises(DivergedError):
        run(recipe, tmp_path / "run")
    assert read_result(tmp_path / "run") is None
    record = read_divergence(tmp_path / "run")
    assert (record["key"], record["phase"], record["epoch"]) == (recipe.key(), "train", 2)
    assert re.match(r"(the loss is|.* is no longer finite) .*at step \d+ \(epoch 3", record["diverged"])
    assert "top1" not in record
    done = tmp_path / "done"
    done.mkdir()
    run(RECIPE, done / "run")
    (done / "run" / "result.json").unlink()
    (done / "run" / "diverged.json").write_text(json.dumps(record))
    run(RECIPE, done / "run")
    assert read_divergence(done / "run") is None


def test_a_run_that_diverges_at_once_says_that_there_is_no_checkpoint(tmp_path):
    with pytest.raises(DivergedError, match="There is no checkpoint"):
        run(RECIPE.changed(lr=1e30), tmp_path / "run")


def test_a_checkpoint_holds_data_only(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(TypeError, match="holds tensors, numbers and texts, got builtin"):
        checkpoint.save(path, {"trainer": os.system})
    assert not path.exists()


def test_a_checkpoint_keeps_every_value_and_the_order_of_dimensions_in_memory(tmp_path):
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    state = {"a": {0: images, "b": [1, 2.5, (None, True, "text")]}, "inf": float("inf"), "empty": torch.empty(0, 3)}
    state |= {"half": torch.ones(3, dtype=torch.bfloat16), "one": torch.tensor(7), "turned": torch.randn(3, 4).T}
    checkpoint.save(tmp_path / "c", state)
    again = checkpoint.load(tmp_path / "c")
    assert again["a"]["b"] == [1, 2.5, (None, True, "text")]
    assert again["inf"] == float("inf")
    for one, other in [(images, again["a"][0]), *((state[name], again[name]) for name in ("half", "one", "turned"))]:
        assert one.dtype is other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", None])
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, {"trainer": {"weights": torch.ones(1000)}})
    path.write_bytes(path.read_bytes()[:1000] if damage is None else damage)
    with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors is damaged .* Remove it to start"):
        checkpoint.load(path)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_run_stopped_at_the_end_of_an_epoch_or_in_its_evaluation_resumes_with_a_display(tmp_path, batch):
    recipe, folder, last, told = RECIPE.changed(epochs=2), tmp_path / "run", 21, []

    def stop(event):
        told.append(getattr(event, "step", 0))
        if told.count(last) == batch:  # the batch that was trained, then those that are evaluated
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError):
        run(recipe, folder, listeners=[stop])
    assert checkpoint.load(folder / "checkpoint.safetensors")["trainer"]["step"] == last
    assert not read_metrics(folder)
    said = io.StringIO()
    run(recipe, folder, listeners=[Display(Console(file=said, width=200))])
    lines = [line for line in said.getvalue().splitlines() if line.startswith("epoch ")]
    assert ["ETA" in line for line in lines] == [False, True, True]


@pytest.mark.parametrize(
    "fields",
    [
        *({"method": method, "every": "paper"} for method in METHODS if method != "dpf"),
        {"bf16": True, "channels_last": True},
        {"optimizer": "adam", "lr": 1e-3},
        {"unit": "filter", "sparsity": 0.3},
        {"unit": "filter", "sparsity": 0.3, "floor": 1, "options": ["channels=true"]},
        {"ramp_end": 0},
    ],
)
def test_every_kind_of_run_resumes_bit_for_bit(tmp_path, fields):
    recipe = RECIPE.changed(epochs=2, finetune_epochs=1, **fields)
    run(recipe, tmp_path / "whole")

    class EnoughError(Exception):
        pass

    for stop_at in (1, 30, 50):  # in the first, the second and the fine-tuning epoch

        def leave(event, stop_at=stop_at):
            if getattr(event, "step", 0) == stop_at:
                raise EnoughError

        with pytest.raises(EnoughError):
            run(recipe, tmp_path / "parts", listeners=[leave], save_every=0.01)
    run(recipe, tmp_path / "parts")
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
