"""Kills real processes at hundreds of random times and checks that nothing is lost, damaged or different.

    python -m benchmarks.chaos                      # until every campaign has its `KILLS`; about two hours
    python -m benchmarks.chaos --kills 20 --only training --out /tmp/chaos.jsonl

Each round is one line in `results/chaos/kills.jsonl`: what was done, the seed that repeats its random choices, kills,
files checked, seconds. Recorded kills count: an interrupted command resumes with the missing ones. It stops at the
first damaged file, lost run, or result that is not bit-identical to that of an undisturbed process, and keeps the
folder.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.kills import CAMPAIGNS
from benchmarks.runner import RESULTS, machine, table

KILLS = {
    "checkpoint writing": 300,
    "packing": 200,
    "two-writer packing": 100,
    "training": 200,
    "sweeping": 50,
    "launching": 20,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, help=f"kills in each campaign (default: {KILLS})")
    parser.add_argument("--only", choices=CAMPAIGNS, help="one campaign")
    parser.add_argument("--out", type=Path, default=RESULTS.parent / "chaos" / "kills.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [options.only] if options.only else list(CAMPAIGNS):
        wanted = options.kills or KILLS[name]
        while (done := _totals(_records(options.out))[name, "kills"]) < wanted:
            _round(name, done, wanted, options.out)
    print(f"\n{summary(_records(options.out))}\n\nno damaged file, no lost run, every result bit-identical")


def _round(name: str, done: int, wanted: int, out: Path) -> None:
    number = _totals(_records(out))[name, "rounds"]
    seed, began = f"{name} {number}", time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        tally = CAMPAIGNS[name](folder / "files", random.Random(seed))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        traceback.print_exc()
        sys.exit(f"{name}, round {number} is a failure; its files are kept in {folder}")
    _remove(folder)
    record = {"campaign": name, "round": number, "kills": tally.kills, "files": tally.files}
    facts = {"seconds": round(time.monotonic() - began, 1), "date": date.today().isoformat(), "machine": machine()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record | facts) + "\n")
    print(
        f"{name}: round {number}, {tally.kills} kills, {tally.files} files whole, {facts['seconds']} s"
        f" ({done + tally.kills} of {wanted})",
        flush=True,
    )


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _totals(records: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    totals: Counter[tuple[str, str]] = Counter()
    for record in records:
        totals[record["campaign"], "rounds"] += 1
        for count in ("kills", "files"):
            totals[record["campaign"], count] += record[count]
    return totals


def summary(records: list[dict[str, Any]]) -> str:
    """Return the totals of all recorded rounds."""
    totals = _totals(records)
    counts = ("rounds", "kills", "files")
    rows: list[dict[str, str | int | float]] = [
        {"campaign": name, **{count: totals[name, count] for count in counts}} for name in CAMPAIGNS
    ]
    rows.append({"campaign": "all", **{count: sum(totals[name, count] for name in CAMPAIGNS) for count in counts}})
    return table(rows)


if __name__ == "__main__":
    main()
