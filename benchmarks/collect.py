"""Writes finished runs down as JSON lines, one per run, so that results outlive the run folders.

`python -m benchmarks.collect runs/* -o results/cifar10-resnet8.jsonl`
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def record(run: Path) -> dict[str, Any]:
    """Return what a finished run measured: its result, accuracy before fine-tuning, its recipe and where it ran."""
    result = json.loads((run / "result.json").read_text())
    environment = json.loads((run / "environment.json").read_text())
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [epoch for epoch in epochs if epoch.get("phase") == "train" and "top1" in epoch]
    return {
        "top1_before_finetuning": trained[-1]["top1"],
        **result,
        # Folders of the machine say nothing to a reader; the recipe is the command.
        "environment": {fact: environment[fact] for fact in ("system", "cpu", "cores", "threads", "cuda")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path)
    options = parser.parse_args()
    finished = [run for run in options.runs if (run / "result.json").exists()]
    records = sorted((record(run) for run in finished), key=lambda each: (each["name"], each["key"]))
    options.out.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records))
    print(f"{len(records)} finished runs of {len(options.runs)} written to {options.out}")


if __name__ == "__main__":
    main()
