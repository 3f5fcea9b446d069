"""Writes the results of finished and diverged runs as JSON Lines, so that the run folders can be deleted.

`python -m benchmarks.collect runs/* -o results/cifar10-resnet20.jsonl` adds them to the file; a run that is already in
it is replaced.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from regrow.runs.folder import read_divergence, read_metrics, read_result, write_whole
from regrow.runs.recipe import Recipe
from reproduce.results import portable

# Fields of an epoch's record that the figures of a report use.
_EPOCH = (
    *("epoch", "phase", "lr", "loss", "test_loss", "top1", "sparsity", "delta", "flips", "iou", "refreshes"),
    *("refresh_flips", "refresh_iou", "layers", "seconds", "images_per_second"),
)


def record(run: Path, *, curves: bool = True) -> dict[str, Any]:
    """Return the record of a finished or diverged run: its result, its `curves`, and the machine.

    A run that moved between machines has a `machines.jsonl` beside its result: a line per machine and first epoch.
    """
    result = ended(run) or {}
    environment = json.loads((run / "environment.json").read_text())
    epochs = read_metrics(run)
    trained = [epoch for epoch in epochs if epoch["phase"] == "train"]
    # Paths of this machine mean nothing to a reader: masks and weights from other runs are identified by the run's
    # name.
    recipe = portable(Recipe.of(result["recipe"], str(run)))
    shown = [short_epoch(epoch) for epoch in epochs]
    machines = run / "machines.jsonl"
    return {
        "mask_updates": sum(epoch.get("refreshes", 0) for epoch in epochs),  # results of early versions lack it
        **({"top1_before_finetuning": trained[-1]["top1"]} if trained and "top1" in result else {}),
        **result,
        "key": recipe.key(),
        "recipe": dataclasses.asdict(recipe),
        **({"epochs": shown} if curves else {}),
        "environment": {
            fact: environment.get(fact) for fact in ("system", "cpu", "cores", "threads", "cuda", "commit")
        },
        **({"machines": list(map(json.loads, machines.read_text().splitlines()))} if machines.exists() else {}),
    }


def ended(run: Path) -> dict[str, Any] | None:
    """Return the result of a finished run, or the record of a diverged one."""
    return read_result(run) or read_divergence(run)


def add(records: Iterable[dict[str, Any]], path: Path) -> int:
    """Add `records` to the results file at `path`; return how many of them are new."""
    known = {each["key"]: each for each in map(json.loads, path.read_text().splitlines() if path.exists() else ())}
    together = known | {each["key"]: each for each in records}
    ordered = sorted(together.values(), key=lambda each: (each["name"], each["key"]))
    write_whole(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in ordered).encode())
    return len(together) - len(known)


def short_epoch(epoch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an epoch's record that figures need."""
    return {name: _short(epoch[name]) for name in _EPOCH if name in epoch}


def _short(value: Any) -> Any:
    """Return numbers with the digits that a figure can show."""
    if isinstance(value, dict):
        return {name: round(share, 4) if share < 1 else 1 for name, share in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path)
    parser.add_argument("--no-curves", action="store_true", help="leave out the curves over epochs")
    options = parser.parse_args()
    records = [record(run, curves=not options.no_curves) for run in options.runs if ended(run) is not None]
    added = add(records, options.out)
    print(f"{len(records)} of {len(options.runs)} runs have ended; {added} new records written to {options.out}")


if __name__ == "__main__":
    main()
