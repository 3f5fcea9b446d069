"""`regrow sweep`: a file with a grid in, a folder of runs out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from regrow.sweep import Job, Resources
    from regrow.train.config import Recipe


def sweep(
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SWEEP.toml")],
    *,
    out: Path | None = None,
    workers: int | None = None,
    on: Literal["local", "ray", "slurm"] = "local",
    address: str | None = None,
    cpus: int = 1,
    gpus: int = 0,
    partition: str | None = None,
    minutes: int = 24 * 60,
    retries: int = 3,
    dry_run: bool = False,
) -> int:
    """Train all combinations in a file: `regrow sweep sweep.toml`, and the same command again to go on.

    The file names a recipe, fields that are changed in it, and under [grid] lists of values to combine, such as
    method = ["dpf", "set"] and seed = [0, 1, 2]. Finished runs are skipped and interrupted ones continued.

    Args:
        file: The sweep.
        out: Folder for the folders of the runs. None: runs/ and the name of the file.
        workers: Runs at a time. None: as many as there are processors.
        on: Processes on this machine, a Ray cluster, or SLURM.
        address: Of a Ray cluster; None starts one on this machine. With slurm, "local" does without SLURM.
        cpus: Processors of a run, and its threads unless the recipe says.
        gpus: GPUs of a run.
        partition: Of SLURM.
        minutes: Time limit of a SLURM job; a run that needs longer goes on in another one.
        retries: How often a run may die at the same place before it counts as failed.
        dry_run: List the runs and what is known about them.
    """
    from regrow.sweep import Resources, read_sweep

    recipes, folder = read_sweep(file), out or Path("runs") / file.stem
    if dry_run:
        return _list(recipes, folder)
    resources = Resources(cpus=cpus, gpus=gpus, address=address, partition=partition, minutes=minutes)
    return _run(recipes, folder, workers=workers, on=on, resources=resources, retries=retries)


def _run(
    recipes: list[Recipe], folder: Path, *, workers: int | None, on: str, resources: Resources, retries: int
) -> int:
    from regrow.sweep import SweepStoppedError, run_all
    from regrow.sweep.display import Board

    board = Board()
    try:
        run_all(recipes, folder, workers=workers, on=on, resources=resources, retries=retries, listener=board)
    except SweepStoppedError as stopped:
        board.close()
        print(f"regrow: {stopped}, all saved. Go on with the same command.", file=sys.stderr)
        return 128 + stopped.signal
    finally:
        board.close()
    board.console.print(f"all finished. See them with: regrow report {folder}", soft_wrap=True)
    return 0


def _list(recipes: list[Recipe], folder: Path) -> int:
    from regrow.sweep.job import jobs_for

    jobs = jobs_for(recipes, folder)
    states = [_state(job) for job in jobs]
    print("\n".join(f"{job.folder}  {state}" for job, state in zip(jobs, states, strict=True)))
    finished = sum(state.startswith("finished") for state in states)
    print(f"{len(recipes):,} runs, {finished:,} finished. Nothing was started.")
    return 0


def _state(job: Job) -> str:
    from regrow.sweep.display import scores
    from regrow.train.files import FolderError
    from regrow.train.folder import read_divergence

    try:
        result = job.result()
    except FolderError as error:
        return str(error)
    if result is not None:
        return f"finished  {scores(result)}"
    if (divergence := read_divergence(job.folder)) is not None:
        return f"★ diverged  {divergence['diverged']}"
    return "interrupted" if (job.folder / "recipe.toml").is_file() else "to do"
