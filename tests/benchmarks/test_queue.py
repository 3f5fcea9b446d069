"""The queue of trainings records every run as soon as it ends, a diverged one too, and repeats none of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import collect, keep, queue
from regrow.runs.recipe import Recipe
from reproduce.lottery import Ticket
from reproduce.results import Cell, ResultStore

SHORT = Recipe(epochs=1, width=4, batch=16, limit=128, every="auto", ramp_by="step", threads=1)


def stage(file: Path, *recipes: Recipe) -> list[queue.Stage]:
    return [queue.Stage("a few digits", [Cell((recipe,)) for recipe in recipes], file)]


def test_every_run_is_recorded_once_and_a_diverged_one_is_not_repeated(tmp_path: Path, monkeypatch, capfd) -> None:
    file = tmp_path / "records.jsonl"
    monkeypatch.setattr(queue, "stages", lambda _: stage(file, SHORT, SHORT.changed(seed=1), SHORT.changed(lr=1e30)))

    together = []
    add = collect.add
    monkeypatch.setattr(collect, "add", lambda records, path: together.append(len(records)) or add(records, path))

    assert queue.work(tmp_path / "runs", workers=2)

    assert together == [1, 1, 1]
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((each["recipe"]["seed"], "diverged" in each) for each in records) == [
        (0, False),
        (0, True),
        (1, False),
    ]
    assert "1 of 3 runs failed" in capfd.readouterr().out

    assert queue.work(tmp_path / "runs", workers=2)
    assert capfd.readouterr().out == ""


def test_a_run_that_was_finished_but_not_recorded_is_recorded_without_training_it_again(tmp_path, monkeypatch) -> None:
    file = tmp_path / "records.jsonl"
    monkeypatch.setattr(queue, "stages", lambda _: stage(file, SHORT))
    queue.work(tmp_path / "runs", workers=1)
    [first] = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()

    assert queue.work(tmp_path / "runs", workers=1)

    assert json.loads(file.read_text()) == first  # the seconds, too


def test_a_stopped_queue_says_how_to_continue_in_one_line(tmp_path: Path) -> None:
    program = (
        "import pathlib; from benchmarks import queue; from tests.benchmarks.test_queue import SHORT, stage\n"
        f"file = pathlib.Path({str(tmp_path / 'records.jsonl')!r})\n"
        "queue.stages = lambda _: stage(file, SHORT.changed(epochs=10**6))\n"
        f"import sys; sys.argv[1:] = [{str(tmp_path / 'runs')!r}]; queue.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path).rglob("metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)

    assert process.returncode == 1
    assert errors.splitlines()[-1].endswith("The same command continues.")
    assert "Traceback" not in errors


@pytest.mark.parametrize("seed", [0, 1])
def test_the_queue_has_every_recipe_of_the_papers_comparison(seed: int) -> None:
    wanted = {
        (recipe.method, recipe.sparsity if recipe.method != "dense" else None)
        for each in queue.stages()
        for cell in each.cells
        for recipe in cell.recipes
        if recipe.model == "resnet20" and recipe.seed == seed
    }
    assert {("dense", None), ("dpf", 0.9), ("dpf", 0.95), ("incremental", 0.9), ("oneshot", 0.95)} <= wanted


def test_masks_without_their_run_folders_are_left_and_the_queue_says_what_they_need(
    tmp_path, monkeypatch, capfd
) -> None:
    fixed = SHORT.changed(method="fixed", masks="digits-small-dpf90-s0-00000000")
    [wanted] = stage(tmp_path / "records.jsonl", fixed)
    wanted.cells.append(Cell(()))  # its mask is not searched yet
    monkeypatch.setattr(queue, "stages", lambda _: [wanted])

    assert not queue.work(tmp_path / "runs", workers=1)

    said = "a few digits: 2 of 2 left; needs the run folders of DPF at 90 % in RUNS\n"
    assert capfd.readouterr().out == said
    assert not (tmp_path / "runs").exists()


def test_every_method_is_tuned_before_it_is_compared_and_the_300_epochs_come_last() -> None:
    first, *later = queue.stages()
    methods = {recipe.method for each in later for cell in each.cells for recipe in cell.recipes}
    tuned = {cell.recipes[0].method for cell in first.cells}
    assert first.name == "learning rates"
    assert methods - tuned == {"oneshot", "fixed", "lottery"}  # with the rates of the dense network and of DPF
    assert later[-1].name.startswith("the paper's 300 epochs")


def test_the_queue_trains_all_claims_on_the_small_network_with_two_seeds(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(queue, "RESNET8", tmp_path / "records.jsonl")  # as on a new machine, without records
    found = {
        seed: {
            recipe.changed(seed=0)
            for each in queue.stages()
            if each.file == queue.RESNET8
            for cell in each.cells
            for recipe in cell.recipes
            if recipe.seed == seed
        }
        for seed in (0, 1)
    }
    methods = {recipe.method for recipe in found[0]}
    assert {"dense", "dpf", "incremental", "oneshot", "acdc", "granet", "static", "sfp", "lottery"} <= methods
    assert found[0] == found[1]


def test_every_file_of_the_queue_is_harvested() -> None:
    assert {each.file for each in queue.stages()} == {keep.ROOT / file for file in keep.RECORDS}


def test_a_search_for_a_ticket_records_all_levels(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "records.jsonl"
    ticket = Ticket(SHORT.changed(method="lottery", epochs=2), sparsity=0.3, rewind=1)
    cells = [Cell((ticket.level(each),)) for each in ticket.levels]
    monkeypatch.setattr(queue, "stages", lambda _: [queue.Stage("a ticket", cells, file, ticket)])

    for _ in range(2):  # the second time, there is nothing to do
        assert queue.work(tmp_path / "runs", workers=1)

    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["recipe"]["sparsity"] for each in records] == pytest.approx(ticket.levels)
    assert ResultStore.read([file]).missing(cells) == []


def test_the_300_epochs_have_the_key_of_the_long_training() -> None:
    fields = {"model": "resnet20", "epochs": 300, "lr": 0.2, "every": 16, "channels_last": True}
    assert queue.paper_cell("dpf", 0.9).recipes[0].key() == Recipe(data="cifar10", **fields).key()
