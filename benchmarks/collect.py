"""Writes the results of finished and diverged runs as JSON Lines, so that the run folders can be deleted.

`python -m benchmarks.collect runs/* -o results/cifar10-resnet20.jsonl` adds them to the file; a run that is already in
it is replaced.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regrow.runs.folder import read_divergence, read_metrics, read_result, write_whole
from regrow.runs.recipe import Recipe
from regrow.system import lock
from reproduce.migrate import migrated
from reproduce.results import portable

# Fields of an epoch's record that the figures of a report use.
_EPOCH = (
    *("epoch", "phase", "lr", "loss", "test_loss", "top1", "sparsity", "delta", "flips", "iou", "refreshes"),
    *("refresh_flips", "refresh_iou", "layers", "seconds", "images_per_second"),
)


def record(run: Path, *, curves: bool = True) -> dict[str, Any]:
    """Return the record of a finished or diverged run: its result, its `curves`, and the machine."""
    result = migrated(ended(run) or {})
    environment = json.loads((run / "environment.json").read_text())
    epochs = read_metrics(run)
    trained = [epoch for epoch in epochs if epoch["phase"] == "train"]
    # Paths of this machine mean nothing to a reader: masks and weights from other runs are identified by the run's
    # name.
    recipe = portable(Recipe.of(result["recipe"], str(run)))
    shown = [short_epoch(epoch) for epoch in epochs]
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
    }


def ended(run: Path) -> dict[str, Any] | None:
    """Return the result of a finished run, or the record of a diverged one."""
    return read_result(run) or read_divergence(run)


def add(records: Iterable[dict[str, Any]], path: Path) -> int:
    """Add `records` to the results file at `path`; return how many of them are new."""
    with _alone(path):
        known = read(path)
        together = known | {each["key"]: each for each in records}
        write(together, path)
    return len(together) - len(known)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a results file by their keys, with current names; a missing file has none."""
    return by_key(path.read_text("utf-8")) if path.exists() else {}


def by_key(lines: str) -> dict[str, dict[str, Any]]:
    """Return the records in JSON Lines by their keys, with current names."""
    return {each["key"]: each for each in map(migrated, map(json.loads, lines.splitlines()))}


def write(records: Mapping[str, dict[str, Any]], path: Path) -> None:
    """Write a results file."""
    ordered = sorted(records.values(), key=lambda each: (each["name"], each["key"]))
    write_whole(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in ordered).encode())


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process adds to `path`, whose own file is replaced with every record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("ab") as file:
        while not lock(file.fileno()):
            time.sleep(0.05)
        yield


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
