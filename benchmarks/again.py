"""Trains a record again on another CPU: `python -m benchmarks.again`.

It takes a record of every network and every kind of CPU but this one and writes to `results/machines/again.jsonl`
whether its numbers came out the same, so that the pages know which CPUs round alike. That takes a few minutes.

If a record has curves, its first epochs are enough: it has six digits of every number, and after 700 steps, a bit that
differs would very likely show in them. Others are trained to the end. If the numbers differ, find out first whether a
record of this CPU comes out the same (`tests/reproduce/test_again.py`): the code may have changed, not the CPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import collect
from benchmarks.queue import RESNET8
from benchmarks.runner import RESULTS
from regrow.runs.folder import write_whole
from regrow.runs.recipe import Recipe
from regrow.system import environment
from regrow.train.loop import make_trainer

RECORDS = tuple(RESULTS.parent / name for name in ("digits/small.jsonl", RESNET8.name, "cifar10-resnet20-cpu.jsonl"))
FOUND = RESULTS.parent / "machines" / "again.jsonl"
EPOCHS = 2
CLOCK = ("seconds", "images_per_second")
FINAL = ("epoch", "step", "loss", "test_loss", "top1", "sparsity")


class _EnoughError(Exception):
    """All wanted epochs are trained."""


def chosen(records: Iterable[dict[str, Any]], *, torch: str) -> dict[str, dict[str, Any]]:
    """Return one record for each CPU: of a training that needs no other run, made with this torch; of DPF if possible.

    Records of trainings that moved between CPUs are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(records, key=lambda row: row["recipe"]["method"] != "dpf"):
        alone = row["recipe"].get("init") is None and row["recipe"].get("masks") is None
        if alone and "top1" in row and "machines" not in row and row["versions"]["torch"] == torch:
            found.setdefault(row["environment"]["cpu"], row)
    return found


def same_numbers(record: dict[str, Any]) -> bool:
    """Train a record again, as far as needed, and return whether all numbers but times are those of the record."""
    curves = record.get("epochs", [])[:EPOCHS]
    trained = _trained(Recipe.of(record["recipe"], record["name"]), len(curves))
    if not curves:
        return all(trained[-1][name] == record[name] for name in FINAL)
    short = [collect.short_epoch(epoch) for epoch in trained]
    return all(new[name] == old[name] for new, old in zip(short, curves, strict=True) for name in new.keys() - CLOCK)


def _trained(recipe: Recipe, count: int) -> list[dict[str, Any]]:
    """Return the records of the first `count` epochs, or of all if that is 0."""
    epochs: list[dict[str, Any]] = []

    def after_epoch(epoch: dict[str, Any]) -> None:
        epochs.append(epoch)
        if len(epochs) == count:
            raise _EnoughError

    with suppress(_EnoughError):
        make_trainer(recipe).run(lambda: None, after_epoch)
    return epochs


def compare(records: Path, found: Path = FOUND) -> None:
    """Train a record of each other CPU again and add what was found to the file `found`."""
    here = environment(1)
    lines = [json.loads(line) for line in found.read_text("utf-8").splitlines()] if found.exists() else []
    torch = here["versions"]["torch"]
    known = {(frozenset(line["cpus"]), line["model"], line["threads"], line["torch"]) for line in lines}
    for cpu, record in chosen(collect.read(records).values(), torch=torch).items():
        recipe = record["recipe"]
        if cpu == here["cpu"] or (frozenset((cpu, here["cpu"])), recipe["model"], recipe["threads"], torch) in known:
            continue
        print(f"training {record['name']} ({cpu}) again on {here['cpu']}", flush=True)
        same = same_numbers(record)
        lines.append(
            {
                **{"cpus": [cpu, here["cpu"]], "model": recipe["model"], "threads": recipe["threads"], "same": same},
                **{"name": record["name"], "key": record["key"], "torch": torch, "commit": here["commit"]},
            }
        )
        found.parent.mkdir(parents=True, exist_ok=True)
        write_whole(found, "".join(json.dumps(line) + "\n" for line in lines).encode())
        print("the same numbers" if same else "other numbers")


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for records in RECORDS:
        compare(records)


if __name__ == "__main__":
    main()
