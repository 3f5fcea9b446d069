"""Overhead of a sweep: starting each run, and finding thousands of finished ones.

    python -m benchmarks.sweep

* Overhead per run: `run_all` on runs of one optimizer step each, one worker, beside the same runs in one process.
  The difference is the driver: a process from the fork server, the run's folder, its log and its outcome.
* Listing: a sweep of 10,000 recipes whose runs are all finished, from the TOML file to the last line of
  `regrow sweep --dry-run`, in a fresh process; and `run_all`, which finds that nothing is left to do. Both in processor
  time, with that of the fresh process, so that a busy machine has little effect.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from benchmarks.runner import interleave, report
from regrow.runs.recipe import Recipe
from regrow.sweep import read_sweep, run_all
from regrow.sweep.jobs import jobs_for
from regrow.train.run import run

RUNS, LISTED, BAR = 8, 10_000, 2.0
RECIPE = Recipe(data="digits", width=4, epochs=1, batch=2048, threads=1)


def overhead(folder: Path) -> dict[str, float]:
    """Seconds per run, in one process and as a sweep."""
    folders = (folder / str(number) for number in itertools.count())
    recipes = [RECIPE.changed(seed=seed) for seed in range(RUNS)]

    def in_one_process() -> None:
        place = next(folders)
        for recipe in recipes:
            run(recipe, place / str(recipe.seed))

    least = interleave(
        {"one process": in_one_process, "sweep": lambda: run_all(recipes, next(folders), workers=1)}, rounds=4
    )
    return {name: seconds / RUNS for name, seconds in least.items()}


def finished_sweep(folder: Path) -> tuple[Path, Path]:
    """Make a sweep whose runs are all finished: one is trained, and its result is copied for the others."""
    sweep, runs = folder / "many.toml", folder / "many"
    sweep.write_text(RECIPE.to_toml() + f"[grid]\nseed = {list(range(LISTED))}\n", encoding="utf-8")
    run(RECIPE, folder / "first")
    result = json.loads((folder / "first" / "result.json").read_bytes())
    for job in jobs_for(read_sweep(sweep), runs):
        job.folder.mkdir(parents=True)
        (job.folder / "recipe.toml").write_text(job.recipe.to_toml())
        own = {"name": job.recipe.name(), "key": job.key, "recipe": {**result["recipe"], "seed": job.recipe.seed}}
        (job.folder / "result.json").write_text(json.dumps(result | own, indent=2))
    return sweep, runs


def listing(folder: Path) -> dict[str, float]:
    """Seconds to list a large finished sweep in a fresh process, and to find that nothing is left to do."""
    sweep, runs = finished_sweep(folder)
    command = [sys.executable, "-m", "regrow", "sweep", sweep, "--out", runs, "--dry-run"]

    def list_all() -> None:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"{LISTED:,} runs, {LISTED:,} finished" in said

    contenders = {"list": list_all, "nothing to do": lambda: run_all(read_sweep(sweep), runs)}
    return interleave(contenders, rounds=3, clock=lambda: sum(os.times()[:4]))


def main() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")  # a run of one step is too short for its sparsity, and says so
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        started = time.perf_counter()
        cost = overhead(folder)
        found = listing(folder)
        print(f"measured in {time.perf_counter() - started:.0f} s")
    rows = [
        {"what": "a run of one step, in one process", "ms": 1000 * cost["one process"]},
        {"what": "the same as a run of a sweep", "ms": 1000 * cost["sweep"]},
        {"what": "the sweep's overhead per run", "ms": 1000 * (cost["sweep"] - cost["one process"])},
        {"what": f"regrow sweep --dry-run, {LISTED:,} finished", "ms": 1000 * found["list"]},
        {"what": f"run_all, {LISTED:,} finished", "ms": 1000 * found["nothing to do"]},
    ]
    report(f"Sweeps: overhead per run, and {LISTED:,} finished runs (bar: listed in {BAR:g} s)", rows, name="sweep")
    assert found["list"] < BAR, f"listing took {found['list']:.2f} s"


if __name__ == "__main__":
    main()
