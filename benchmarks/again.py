"""Trains the first epochs of a record again on another CPU: `python -m benchmarks.again`.

It takes a record of ResNet-20 from every kind of CPU but this one and writes to `results/machines/again.jsonl` whether
its numbers came out the same, so that the pages know which CPUs round alike. Each takes a few minutes.

Records have six digits of every number. After 700 steps, any bit that differs would show in them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import collect
from benchmarks.runner import RESULTS
from regrow.runs.folder import write_whole
from regrow.runs.recipe import Recipe
from regrow.system import environment
from regrow.train.loop import make_trainer

RECORDS = RESULTS.parent / "cifar10-resnet20-cpu.jsonl"
FOUND = RESULTS.parent / "machines" / "again.jsonl"
EPOCHS = 2
CLOCK = ("seconds", "images_per_second")


class _EnoughError(Exception):
    """All wanted epochs are trained."""


def chosen(records: Iterable[dict[str, Any]], *, torch: str) -> dict[str, dict[str, Any]]:
    """Return one record for each CPU: of a training that needs no other run, made with this torch; of DPF if possible.

    The record of a training that moved between CPUs is of none.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(records, key=lambda row: row["recipe"]["method"] != "dpf"):
        alone = row["recipe"].get("init") is None and row["recipe"].get("masks") is None
        if alone and row.get("epochs") and "machines" not in row and row["versions"]["torch"] == torch:
            found.setdefault(row["environment"]["cpu"], row)
    return found


def same_numbers(record: dict[str, Any]) -> bool:
    """Train the first epochs of a record and return whether all numbers but times are those of the record."""
    trained = _trained(Recipe.of(record["recipe"], record["name"]))
    return trained == [{name: epoch[name] for name in trained[0]} for epoch in record["epochs"][:EPOCHS]]


def _trained(recipe: Recipe) -> list[dict[str, Any]]:
    epochs: list[dict[str, Any]] = []

    def after_epoch(epoch: dict[str, Any]) -> None:
        epochs.append({name: value for name, value in collect.short_epoch(epoch).items() if name not in CLOCK})
        if len(epochs) == EPOCHS:
            raise _EnoughError

    try:
        make_trainer(recipe).run(lambda: None, after_epoch)
    except _EnoughError:
        return epochs
    raise ValueError(f"{recipe.name()} has fewer than {EPOCHS} epochs")


def compare(records: Path = RECORDS, found: Path = FOUND) -> None:
    """Train the records of other CPUs again and add what was found to the file `found`."""
    here = environment(1)
    lines = [json.loads(line) for line in found.read_text("utf-8").splitlines()] if found.exists() else []
    known = {(frozenset(line["cpus"]), line["model"]) for line in lines}
    for cpu, record in chosen(collect.read(records).values(), torch=here["versions"]["torch"]).items():
        recipe = record["recipe"]
        if cpu == here["cpu"] or (frozenset((cpu, here["cpu"])), recipe["model"]) in known:
            continue
        print(f"training {EPOCHS} epochs of {record['name']} ({cpu}) again on {here['cpu']}", flush=True)
        same = same_numbers(record)
        lines.append(
            {
                **{"cpus": [cpu, here["cpu"]], "model": recipe["model"], "threads": recipe["threads"], "same": same},
                **{"name": record["name"], "key": record["key"], "epochs": EPOCHS, "commit": here["commit"]},
            }
        )
        found.parent.mkdir(parents=True, exist_ok=True)
        write_whole(found, "".join(json.dumps(line) + "\n" for line in lines).encode())
        print("the same numbers" if same else "other numbers")


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    compare()


if __name__ == "__main__":
    main()
