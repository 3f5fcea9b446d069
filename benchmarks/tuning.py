"""Chooses learning rates from finished tuning runs, and records every candidate.

`python -m benchmarks.tuning RUNS...` adds the runs to results/tuning/DATA-NETWORK.jsonl, writes what they choose to
results/tuning/choices.json and the rates of the scales into reproduce/learning-rates.csv. Without RUNS, the choices
are made again from the recorded runs. A tuning run is, for example,
`regrow train cifar-small --method dpf --lr 0.1 --holdout 5000 --seed 100`.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.collect import add, record
from reproduce import scales as rates
from reproduce.results import ResultStore
from reproduce.scales import Scale, find_scale
from reproduce.tuning import SEED, Choice, choose, rate_cells

FOLDER = Path(__file__).parents[1] / "results" / "tuning"
CHOICES = FOLDER / "choices.json"
RATES = Path(rates.__file__).with_name("learning-rates.csv")
SCALES = ("jpeg", "small", "digits")


def runs_file(scale: Scale) -> Path:
    """Return the file of a scale's tuning runs."""
    assert scale.stand_in is not None
    data = "jpeg" if scale.name == "jpeg" else scale.stand_in.data
    return FOLDER / f"{data}-{scale.stand_in.model}.jsonl"


def collect(runs: Sequence[Path]) -> None:
    """Add finished tuning runs to the recorded ones."""
    found = [record(run, curves=False) for run in runs if (run / "result.json").exists()]
    tuned = [each for each in found if each["recipe"]["holdout"] and each["recipe"]["seed"] == SEED]
    for path in {runs_file(find_scale(name)) for name in SCALES}:
        if mine := [each for each in tuned if f"{each['recipe']['data']}-{each['recipe']['model']}" == path.stem]:
            add(mine, path)


def choices() -> list[tuple[str, Choice]]:
    """Return the choices for every method at each scale, from the recorded runs."""
    chosen = []
    for name in SCALES:
        scale = find_scale(name).changed(rates={})
        path = runs_file(scale)
        if not path.exists() or scale.stand_in is None:
            continue
        store = ResultStore.read([path])
        methods = sorted({json.loads(line)["recipe"]["method"] for line in path.read_text().splitlines()})
        found = [_choose(scale, store, scale.stand_in.model, method) for method in methods]
        # A choice among part of the grid would favor the methods that were tuned first.
        chosen += [(name, choice) for choice in found if choice is not None and set(scale.grid) <= choice.tried.keys()]
    return chosen


def _choose(scale: Scale, store: ResultStore, network: str, method: str) -> Choice | None:
    cells = zip(scale.grid, rate_cells(scale, network, method, scale.grid), strict=True)
    return choose(scale, store, network, method, failed=[lr for lr, cell in cells if store.diverged(cell)])


def choice_rows(chosen: Sequence[tuple[str, Choice]]) -> list[dict[str, Any]]:
    """Return the choices for choices.json."""
    return [{"scale": scale, **choice.as_row()} for scale, choice in chosen]


def rate_lines(chosen: Sequence[tuple[str, Choice]]) -> str:
    """Return learning-rates.csv with the lines of the tuned scales made of `chosen`."""
    reader = csv.DictReader(RATES.read_text().splitlines())
    rows: list[dict[str, Any]] = [row for row in reader if row["scale"] not in SCALES]
    fields = list(reader.fieldnames or [])
    for row in choice_rows(chosen):
        rows.append({name: "" if row[name] is None else row[name] for name in fields})
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def main(runs: Sequence[str]) -> None:
    collect([Path(each) for each in runs])
    chosen = choices()
    if chosen:
        CHOICES.write_text(json.dumps(choice_rows(chosen), indent=1) + "\n")
    RATES.write_text(rate_lines(chosen))
    for scale, choice in chosen:
        tried = ", ".join(f"{lr:g}: {'failed' if top1 is None else f'{top1:.2f}'}" for lr, top1 in choice.tried.items())
        edge = "  (at an edge)" if choice.at_edge else ""
        print(f"{scale:<7} {choice.method:<16} {choice.rate.lr:g}   {tried}{edge}")


if __name__ == "__main__":
    main(sys.argv[1:])
