"""Files of results: new runs are added, known ones are replaced, and the order does not depend on who came first."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

from benchmarks.collect import add, read, record
from regrow.runs.recipe import Recipe
from regrow.train.run import run


def test_results_whose_run_folders_are_gone_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert add([{"name": "b", "key": "2", "top1": 1.0}, {"name": "a", "key": "1", "top1": 2.0}], path) == 2
    assert add([{"name": "a", "key": "0", "top1": 3.0}, {"name": "b", "key": "2", "top1": 4.0}], path) == 1
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["name"], each["key"], each["top1"]) for each in found] == [
        ("a", "0", 3.0),
        ("a", "1", 2.0),
        ("b", "2", 4.0),
    ]


def test_the_record_of_a_run_counts_its_mask_updates(tmp_path: Path) -> None:
    run(Recipe(data="digits", model="small", width=4, epochs=2, batch=256, every=1, threads=1), tmp_path / "run")
    found = record(tmp_path / "run")
    assert found["mask_updates"] == sum(epoch["refreshes"] for epoch in found["epochs"]) == 12


def add_records(path: Path, name: str) -> None:
    for number in range(20):
        add([{"name": name, "key": f"{name}{number}"}], path)


def test_processes_that_add_to_the_same_file_lose_no_record(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=add_records, args=(tmp_path / "all.jsonl", name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert len(read(tmp_path / "all.jsonl")) == 60
