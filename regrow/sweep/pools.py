"""Where runs are worked on: the interface that the driver needs, and the choice by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from regrow.sweep.job import Job, Outcome
from regrow.system import cores
from regrow.text import did_you_mean
from regrow.train.config import RecipeError

PLACES = ("local", "ray", "slurm")

# Jobs that SLURM is given at a time unless the user says: it queues those that have no room yet.
_QUEUED = 100


@dataclass(frozen=True)
class Resources:
    """What one run gets, and where the cluster is."""

    cpus: int = 1
    """Processors of a run; also its threads where the recipe leaves them open."""
    gpus: int = 0
    """GPUs of a run, for recipes with device = "cuda"."""
    address: str | None = None
    """Ray: the address of a cluster, "auto" for one on this machine; None starts one here.
    SLURM: "local" tries the same without SLURM, in processes on this machine."""
    partition: str | None = None
    """SLURM: the partition; None is the cluster's default."""
    minutes: int = 24 * 60
    """SLURM: the time limit of a job; a run that needs longer goes on in the next one."""


class Pool(Protocol):
    """Works on jobs; the driver never submits more than `workers` at a time."""

    workers: int

    def submit(self, job: Job) -> None:
        """Begin to work on `job`."""

    def wait(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Return the jobs that have ended, after at most about `seconds`."""

    def close(self) -> None:
        """Let the runs under way save their state, and end all workers."""


def make_pool(on: str, workers: int | None, resources: Resources, jobs: Sequence[Job], folder: Path) -> Pool:
    """Return the pool with the name `on`; what it needs is imported here and not before."""
    check_place(on)
    if on == "local":
        from regrow.sweep.local import LocalPool

        return LocalPool(min(workers or _processes(jobs, resources), len(jobs)), threads=resources.cpus)
    if on == "ray":
        from regrow.sweep.on_ray import RayPool

        return RayPool(workers, resources)
    from regrow.sweep.on_slurm import SlurmPool

    return SlurmPool(min(workers or _QUEUED, len(jobs)), resources, folder)


def check_place(on: str) -> None:
    """Refuse a name that is none of `PLACES`."""
    if on not in PLACES:
        raise RecipeError(f"runs are worked on {', '.join(PLACES)}, got {on!r}.{did_you_mean(on, PLACES)}")


def check_numbers(*, workers: int | None, retries: int, resources: Resources) -> None:
    """Refuse what would start nothing, or wait for ever."""
    for name, value, least in (
        ("workers", workers, 1),
        ("retries", retries, 0),
        ("cpus", resources.cpus, 1),
        ("gpus", resources.gpus, 0),
        ("minutes", resources.minutes, 1),
    ):
        if value is not None and value < least:
            raise RecipeError(f"{name} must be at least {least}, got {value}")


def _processes(jobs: Sequence[Job], resources: Resources) -> int:
    """Return how many runs this machine's processors have room for."""
    threads = max(job.recipe.threads or resources.cpus for job in jobs)
    return max(1, cores() // threads)
