"""A run whose weights are sharded over processes: any number of processes can resume from a checkpoint."""

import os
import random
import signal

import pytest
import torch
from safetensors.torch import load_file

from regrow.cli import main
from regrow.runs.folder import RunFolderError, read_metrics, read_result
from regrow.runs.recipe import RecipeError
from regrow.runs.stop import StoppedError
from regrow.train import checkpoint
from regrow.train.distributed import joined
from regrow.train.run import run
from tests.train.processes import RECIPE, outcome, wait_for
from tests.train.test_run import METHODS, final_sparsity
from tests.train.test_together import asking, stop_in_between, train_all
from tests.train.together import run_together, start_together

SHARDED = RECIPE.changed(epochs=2, parallel="fsdp")

needs_shards = pytest.mark.skipif(not checkpoint.saves_shards(), reason="this torch cannot save sharded tensors")


def close(folder, other):
    """Compare two runs whose sums were added up in another order."""
    ours, theirs = (load_file(each / "model.safetensors") for each in (folder, other))
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-3, atol=1e-4)
    assert [record["sparsity"] for record in read_metrics(folder)] == [
        record["sparsity"] for record in read_metrics(other)
    ]


@needs_shards
@pytest.mark.slow
def test_a_sharded_run_ends_where_a_replicated_one_does_and_leaves_the_same_files(tmp_path):
    run_together(2, train_all, {"sharded": SHARDED, "replicated": SHARDED.changed(parallel="ddp")}, tmp_path)
    close(tmp_path / "sharded", tmp_path / "replicated")
    names = {path.name for path in (tmp_path / "sharded").iterdir() if not path.name.startswith("shards-")}
    assert names == {path.name for path in (tmp_path / "replicated").iterdir()}
    assert list(read_result(tmp_path / "sharded")) == list(read_result(tmp_path / "replicated"))


@needs_shards
@pytest.mark.slow
def test_a_sharded_run_resumes_bit_for_bit(tmp_path):
    run_together(2, train_all, {"whole": SHARDED}, tmp_path)
    run_together(2, stop_in_between, SHARDED, tmp_path / "parts", [1, 30, 50])
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    assert len(list((tmp_path / "parts").glob("shards-*"))) == 1


def stop_at(recipe, folder, step):
    with pytest.raises(StoppedError):
        run(recipe, folder, listeners=[asking(step)])


@needs_shards
def test_another_number_of_processes_can_resume_a_checkpoint(tmp_path):
    # Batch norm depends on each process's part of the batch: a low learning rate keeps that difference small.
    recipe = SHARDED.changed(lr=1e-4, optimizer="adam")
    run(recipe, tmp_path / "alone")
    run_together(3, stop_at, recipe, tmp_path / "many", 20)
    run_together(2, stop_at, recipe, tmp_path / "many", 45)
    before = checkpoint.load(tmp_path / "many" / "checkpoint.safetensors")
    assert before["trainer"]["phase"] == "finetune"
    run(recipe, tmp_path / "many")
    assert read_result(tmp_path / "many")["sparsity"] == read_result(tmp_path / "alone")["sparsity"]
    steps = [record["step"] for record in read_metrics(tmp_path / "many")]
    assert steps == [record["step"] for record in read_metrics(tmp_path / "alone")]


@needs_shards
@pytest.mark.slow
def test_every_method_trains_sharded(tmp_path):
    recipes = {method: SHARDED.changed(method=method, every="paper", sparsity=0.75) for method in METHODS}
    run_together(2, train_all, recipes, tmp_path)
    for method in METHODS:
        result = read_result(tmp_path / method)
        assert result["sparsity"] == pytest.approx(final_sparsity(method, 0.75), abs=5e-3)


def train_and_save_often(recipe, folder):
    with joined("cpu"):
        run(recipe, folder, save_every=0.1)


@needs_shards
@pytest.mark.slow
def test_sharded_processes_killed_while_they_save_lose_nothing(tmp_path):
    recipe, folder = SHARDED.changed(epochs=2, finetune_epochs=0), tmp_path / "run"
    run_together(2, train_all, {"whole": recipe}, tmp_path)
    for _ in range(2):
        processes = start_together(2, train_and_save_often, recipe, folder)
        wait_for(folder / "checkpoint.safetensors", processes[0])
        processes[0].join(random.uniform(0, 0.5))
        os.kill(processes[random.randrange(2)].pid, signal.SIGKILL)
        for process in processes:
            process.join(5)
            process.kill()  # as torchrun does with those that wait for the dead one
            process.join()
    run_together(2, train_and_save_often, recipe, folder)
    assert outcome(folder) == outcome(tmp_path / "whole")


@needs_shards
def test_inspect_shows_a_sharded_run_that_is_not_finished(tmp_path, capsys):
    run_together(2, stop_at, SHARDED, tmp_path / "run", 30)
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(tmp_path / "run")])
    said = capsys.readouterr().out
    assert not ended.value.code
    assert "not finished: after 30 steps" in said
    state = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")["trainer"]
    assert f"{100 * state['pruner']['requested']:.1f} % of the 1,476 targeted weights" in said


@needs_shards
def test_missing_or_damaged_shards_are_named(tmp_path):
    stop_at(SHARDED, tmp_path / "run", 5)
    [shards] = (tmp_path / "run").glob("shards-*")
    [file] = shards.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RunFolderError, match=r"shards-\w+ is damaged"):
        run(SHARDED, tmp_path / "run")
    file.unlink()
    shards.rmdir()
    with pytest.raises(RunFolderError, match=r"shards-\w+ is missing"):
        run(SHARDED, tmp_path / "run")


def test_a_torch_that_cannot_save_shards_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "saves_shards", lambda: False)
    with pytest.raises(RecipeError, match=r'parallel = "fsdp" needs torch 2.9 or newer .*, got \d'):
        run(SHARDED, tmp_path / "run")
