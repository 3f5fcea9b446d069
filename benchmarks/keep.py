"""Brings what the queue in FOLDER has finished into `results/`: `python -m benchmarks.keep FOLDER`.

FOLDER is that of `results/queue/start.sh`, whose queue may be running. Its new records are added to those here. The
paper's 300-epoch training is recorded once it is finished; until then its newest checkpoint is kept in
`results/queue/long`, from which `start.sh` continues it on any machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import collect, tuning
from benchmarks.queue import PAPER, RESNET8, paper_cell

ROOT = Path(__file__).parents[1]
LONG = Path("results", PAPER.name)
RECORDS = (
    *(Path("results/cifar10-resnet20-cpu.jsonl"), Path("results", RESNET8.name)),
    *(Path("results/tuning/cifar10-resnet8.jsonl"), LONG),
)
KEPT = Path("results/queue/long")
REPLACEMENTS = 10
"""Number of commits that may change the kept checkpoint: each adds 4 MB to every clone, for good."""


def unharvested(checkout: Path, file: Path) -> dict[str, dict[str, Any]]:
    """Return the records in a checkout's file that its commit does not have, by key."""
    present = git(checkout, "ls-tree", "HEAD", file)
    committed = git(checkout, "show", f"HEAD:{file.as_posix()}") if present else ""
    known = collect.by_key(committed)
    return {key: each for key, each in collect.read(checkout / file).items() if key not in known}


def harvest(folder: Path, root: Path = ROOT) -> int:
    """Add the new records of the queue in `folder` to those in `root`, and return their number."""
    added = 0
    for file in RECORDS:
        known = collect.read(root / file)
        new = [each for key, each in unharvested(folder / "code", file).items() if key not in known]
        if new:
            added += collect.add(new, root / file)
    print(f"{added} new records")
    return added


def keep_long(folder: Path, root: Path = ROOT) -> None:
    """Record the long training in `folder` if it is finished; otherwise keep its checkpoint in `root`."""
    run, kept = long_run(folder), root / KEPT
    if recorded(root):
        shutil.rmtree(kept, ignore_errors=True)
        print("the long training is recorded")
        return
    if collect.ended(run) is not None:
        collect.add([long_record(folder)], root / LONG)
        shutil.rmtree(kept, ignore_errors=True)
        print("the long training is finished and recorded; its kept checkpoint is removed")
        return
    if not (run / "checkpoint.pt").exists():
        print(f"{run} has no checkpoint of the long training")
        return
    epoch, before = epochs(run), epochs(kept)
    if epoch < before:
        raise SystemExit(f"{run} is at epoch {epoch}, but the kept checkpoint is newer (epoch {before}): not replaced.")
    if epoch == before:
        print(f"the kept checkpoint is that of epoch {epoch} already")
        return
    times = len(git(root, "log", "--oneline", "--", KEPT / "checkpoint.pt").splitlines())
    print(f"{times} of {REPLACEMENTS} commits have changed the kept checkpoint")
    if times >= REPLACEMENTS:
        raise SystemExit(f"The kept checkpoint stays at epoch {before}.")
    # A checkpoint needs the metrics of its epochs: copy them after it, because the training may append to them.
    sources = {name: run / name for name in ("checkpoint.pt", "metrics.jsonl")}
    # Under another name, because it is not a run of the present code.
    sources |= {"recipe.txt": run / "recipe.toml", "machines.jsonl": folder / "machines.jsonl"}
    replace_folder(kept, sources)
    print(f"kept the long training at epoch {epoch}")


def long_run(folder: Path) -> Path:
    """Return the run folder of the long training."""
    return folder / "runs" / "resnet20-dpf90-paper"


def recorded(root: Path) -> bool:
    """Return whether the result of the long training is in `root`."""
    return paper_cell("dpf", 0.9).recipes[0].key() in collect.read(root / LONG)


def long_record(folder: Path) -> dict[str, Any]:
    """Return the record of the finished long training, with its commit and machines, which its code did not write."""
    found = collect.record(long_run(folder))
    machines = _turns(folder / "machines.jsonl", found["epoch"])
    facts = {
        "cpu": ", then ".join(each["cpu"] for each in machines),
        "commit": git(folder / "long", "rev-parse", "--short=12", "HEAD").strip(),
    }
    return {**found, "environment": {**found["environment"], **facts}, "machines": machines}


def _turns(file: Path, epochs: int) -> list[dict[str, Any]]:
    """Return the machines that trained, each with the epoch at which it took over; starts without an epoch are none."""
    turns: list[dict[str, Any]] = []
    for line in map(json.loads, file.read_text("utf-8").splitlines()):
        while turns and turns[-1]["epoch"] >= line["epoch"]:
            turns.pop()
        if line["epoch"] < epochs and (not turns or turns[-1]["cpu"] != line["cpu"]):
            turns.append(line)
    return turns


def epochs(run: Path) -> int:
    """Return how many epochs the metrics in a folder have."""
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def replace_folder(folder: Path, sources: Mapping[str, Path]) -> None:
    """Replace `folder` by copies of files: after a crash it is complete or missing."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, source in sources.items():
        shutil.copyfile(source, partial / name)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def git(checkout: Path, *arguments: str | Path) -> str:
    """Return what a git command prints."""
    command = ["git", "-C", checkout, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the queue")
    folder = parser.parse_args().folder.resolve()
    if not folder.is_dir():
        raise SystemExit(f"{folder} does not exist.")
    if harvest(folder):
        tuning.main([])
    keep_long(folder)


if __name__ == "__main__":
    main()
