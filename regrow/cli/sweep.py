"""`regrow sweep`: train all combinations of a grid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from regrow.runs.recipe import Recipe
    from regrow.sweep import Job


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
    """Train all combinations in a file: `regrow sweep sweep.toml`. The same command resumes an interrupted sweep.

    The file names a recipe and the fields to change in it. Under [grid] it has lists of values to combine, such as
    method = ["dpf", "set"] and seed = [0, 1, 2]. Finished runs are skipped.

    Args:
        file: The sweep file.
        out: Folder for the run folders. None: runs/ and the name of the file.
        workers: Number of runs in parallel. None: one per processor.
        on: Processes on this machine, a Ray cluster, or SLURM.
        address: Address of a Ray cluster; None starts one on this machine. With slurm, "local" runs without SLURM.
        cpus: Processors per run; also its threads unless the recipe sets them.
        gpus: GPUs per run.
        partition: SLURM partition.
        minutes: Time limit of a SLURM job; a longer run continues in another job.
        retries: How often a crashed run is restarted without a new checkpoint before it counts as failed.
        dry_run: List the runs and their state; start nothing.
    """
    from regrow.sweep import Resources, read_sweep, run_all

    recipes, folder = read_sweep(file), out or Path("runs") / file.stem
    if dry_run:
        return _list(recipes, folder)
    from regrow.sweep.display import SweepDisplay

    resources = Resources(cpus=cpus, gpus=gpus, address=address, partition=partition, minutes=minutes)
    display = SweepDisplay()
    try:
        run_all(
            recipes,
            folder,
            workers=workers,
            on=on,
            resources=resources,
            retries=retries,
            listener=display,
            # All recipes come from the file that the user gave.
            imports={name for recipe in recipes for name in recipe.imports},
        )
    finally:
        display.close()
    display.console.print(f"all finished. Compare them: regrow report {folder}", soft_wrap=True)
    return 0


def _list(recipes: list[Recipe], folder: Path) -> int:
    from regrow.sweep.jobs import jobs_for

    jobs = jobs_for(recipes, folder)
    states = [_state(job) for job in jobs]
    print("\n".join(f"{job.folder}  {state}" for job, state in zip(jobs, states, strict=True)))
    finished = sum(state.startswith("finished") for state in states)
    print(f"{len(recipes):,} runs, {finished:,} finished. Nothing was started.")
    return 0


def _state(job: Job) -> str:
    from regrow.runs.folder import RunFolderError, read_divergence
    from regrow.sweep.display import scores

    try:
        result = job.result()
    except RunFolderError as error:
        return str(error)
    if result is not None:
        return f"finished  {scores(result)}"
    if (divergence := read_divergence(job.folder)) is not None:
        return f"★ diverged  {divergence['diverged']}"
    return "interrupted" if (job.folder / "recipe.toml").is_file() else "to do"
