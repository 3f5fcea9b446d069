"""Chooses learning rates by finished tuning runs, and writes down every candidate.

`python -m benchmarks.tuning runs/tune-*` writes the runs to results/tuning/cifar10-resnet8.jsonl, the choices to
results/tuning/choices.json, and the rates of the cpu scale into regrow/paper/learning-rates.csv. Without runs, the
choices are made again from the runs that were written down. A tuning run is, for example,
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

from benchmarks.collect import record
from regrow.paper import rates
from regrow.paper.cells import Library
from regrow.paper.scales import find_scale
from regrow.paper.tuning import SEED, Choice, choose

FOLDER = Path(__file__).parents[1] / "results" / "tuning"
RUNS, CHOICES = FOLDER / "cifar10-resnet8.jsonl", FOLDER / "choices.json"
RATES = Path(rates.__file__).with_name("learning-rates.csv")
SCALE = "cpu"


def collect(runs: Sequence[Path]) -> None:
    """Write finished tuning runs down, added to those that are there."""
    known = [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []
    found = [record(run) for run in runs if (run / "result.json").exists()]
    tuning = [each for each in [*known, *found] if each["evaluated_on"] == "holdout" and each["recipe"]["seed"] == SEED]
    lines = {each["key"]: json.dumps(each, ensure_ascii=False) for each in tuning}
    FOLDER.mkdir(parents=True, exist_ok=True)
    RUNS.write_text("".join(f"{lines[key]}\n" for key in sorted(lines)))


def choices() -> list[Choice]:
    """Return what the written runs choose for every method."""
    library = Library.read([RUNS])
    scale = find_scale(SCALE).changed(rates={})
    assert scale.stand_in is not None
    methods = sorted({json.loads(line)["recipe"]["method"] for line in RUNS.read_text().splitlines()})
    found = (choose(scale, library, scale.stand_in.model, method) for method in methods)
    return [choice for choice in found if choice is not None]


def rate_lines(chosen: Sequence[Choice]) -> str:
    """Return learning-rates.csv with the lines of the cpu scale made of `chosen`."""
    rows: list[dict[str, Any]] = [
        row for row in csv.DictReader(RATES.read_text().splitlines()) if row["scale"] != SCALE
    ]
    fields = list(csv.DictReader(RATES.read_text().splitlines()).fieldnames or [])
    for choice in chosen:
        row = {"scale": SCALE, **choice.as_row()}
        rows.append({name: "" if row[name] is None else row[name] for name in fields})
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def main() -> None:
    collect([Path(each) for each in sys.argv[1:]])
    chosen = choices()
    CHOICES.write_text(json.dumps([choice.as_row() for choice in chosen], indent=1) + "\n")
    RATES.write_text(rate_lines(chosen))
    for choice in chosen:
        tried = ", ".join(f"{lr:g}: {'failed' if top1 is None else f'{top1:.2f}'}" for lr, top1 in choice.tried.items())
        edge = "  (at an edge)" if choice.at_edge else ""
        print(f"{choice.method:<16} {choice.rate.lr:g}   {tried}{edge}")


if __name__ == "__main__":
    main()
