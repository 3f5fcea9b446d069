"""Run many recipes: skip finished runs, resume interrupted ones, and continue when a run fails."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from regrow.runs.find import RunProgress
from regrow.runs.folder import RunFolderError
from regrow.runs.recipe import Recipe, UsageError
from regrow.runs.stop import Stop, StoppedError, stop_requests
from regrow.sweep.jobs import Executor, Job, JobResult, LocalExecutor, Resources, jobs_for
from regrow.system import cores
from regrow.text import did_you_mean

EXECUTORS = ("local", "ray", "slurm")

# Seconds between checks of signals and progress, and before another attempt at a folder that is in use.
_POLL, _BUSY_DELAY = 0.25, 1.0
# Jobs submitted to SLURM at a time by default; it queues those for which there is no room yet.
_QUEUED = 100


@dataclass(frozen=True)
class Began:
    """The sweep starts; `finished` runs were complete before. With 0 workers there is nothing left to do."""

    jobs: Sequence[Job]
    finished: int
    workers: int


@dataclass(frozen=True)
class Update:
    """The state of one run changed."""

    job: Job
    state: Literal["started", "epoch", "finished", "retrying", "busy", "failed"]
    record: Mapping[str, Any] = field(default_factory=dict)
    """The last line of metrics.jsonl (epoch), or result.json (finished)."""
    text: str = ""
    """Why a run failed, is retried or has to wait."""


Event = Began | Update
Listener = Callable[[Event], None]


class SweepError(RuntimeError):
    """Some runs failed, all others are finished. `failed` has the reason for each folder."""

    def __init__(self, failed: Mapping[Path, str], runs: int) -> None:
        reasons = "".join(f"\n  {folder}: {reason}" for folder, reason in failed.items())
        super().__init__(f"{len(failed)} of {runs} runs failed, the others are finished:{reasons}")
        self.failed = dict(failed)


class SweepStoppedError(StoppedError):
    """The sweep was asked to stop; its running jobs have saved their state."""

    def __init__(self, number: int, folder: Path, finished: int, runs: int) -> None:
        super().__init__(number, 0, folder)
        self.args = (f"stopped by {signal.Signals(number).name} with {finished} of {runs} runs finished",)
        self.finished, self.runs = finished, runs


def run_all(
    recipes: Sequence[Recipe],
    folder: Path | str,
    *,
    workers: int | None = None,
    on: str = "local",
    resources: Resources | None = None,
    retries: int = 3,
    listener: Listener | None = None,
    imports: Collection[str] = (),
) -> list[Path]:
    """Train all `recipes` in subfolders of `folder`, and return these folders in the order of the recipes.

    A run folder is named after its recipe's content, so the same call skips what is finished and resumes the rest.
    Each run has its own process; `workers` run at a time (by default, one per processor). A run whose process dies
    is resumed from its last checkpoint. A run fails if it raises an error, or dies more than `retries` times without
    writing a new checkpoint. When all others are finished, failures are raised as one `SweepError`. On SIGINT and
    SIGTERM, the runs save their state and `SweepStoppedError` is raised. `imports` are the callables that recipes may
    name as model and data.

    >>> run_all([Recipe(seed=seed) for seed in range(3)], "runs/seeds")  # doctest: +SKIP
    [PosixPath('runs/seeds/digits-small-dpf90-s0-9c5ed4ed'), ...]
    """
    resources = resources or Resources()
    _check_arguments(on, workers, retries, resources)
    jobs = jobs_for(recipes, Path(folder), imports)
    sweep = _Sweep(list({job.folder: job for job in jobs}.values()), Path(folder), retries, listener or _ignore)
    if sweep.waiting:
        with (
            stop_requests() as stop,
            contextlib.closing(_make_executor(on, workers, resources, sweep.waiting, Path(folder))) as executor,
        ):
            sweep.complete(executor, stop)
    else:
        sweep.tell(Began(sweep.jobs, sweep.finished, 0))
    if sweep.failed:
        raise SweepError(sweep.failed, len(sweep.jobs))
    return [job.folder for job in jobs]


def _ignore(event: Event) -> None:
    pass


def _check_arguments(on: str, workers: int | None, retries: int, resources: Resources) -> None:
    if on not in EXECUTORS:
        raise UsageError(f"on must be one of {', '.join(EXECUTORS)}, got {on!r}.{did_you_mean(on, EXECUTORS)}")
    for name, value, least in (
        ("workers", workers, 1),
        ("retries", retries, 0),
        ("cpus", resources.cpus, 1),
        ("gpus", resources.gpus, 0),
        ("minutes", resources.minutes, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{name} must be at least {least}, got {value}")


def _make_executor(on: str, workers: int | None, resources: Resources, jobs: Sequence[Job], folder: Path) -> Executor:
    if on == "local":
        threads = max(job.recipe.threads or resources.cpus for job in jobs)
        return LocalExecutor(min(workers or max(1, cores() // threads), len(jobs)), threads=resources.cpus)
    from regrow.sweep.clusters import RayExecutor, SlurmExecutor

    if on == "ray":
        return RayExecutor(workers, resources)
    return SlurmExecutor(min(workers or _QUEUED, len(jobs)), resources, folder)


class _Sweep:
    """State of a driver. All of it can be read from the run folders, so another driver can take over at any time."""

    def __init__(self, jobs: list[Job], folder: Path, retries: int, listener: Listener) -> None:
        self.jobs, self._folder, self._retries, self.tell = jobs, folder, retries, listener
        self.waiting: deque[Job] = deque()
        self.failed: dict[Path, str] = {}
        self.finished = 0
        self._delayed: list[tuple[float, Job]] = []
        self._running: dict[Job, RunProgress] = {}
        self._deaths: dict[Path, tuple[int, int]] = {}
        for job in jobs:
            self._sort_in(job)

    def _sort_in(self, job: Job) -> None:
        try:
            if job.result() is None:
                self.waiting.append(job)
            else:
                self.finished += 1
        except RunFolderError as error:
            self.failed[job.folder] = str(error)

    def complete(self, executor: Executor, stop: Stop) -> None:
        """Run until no job is left."""
        self.tell(Began(self.jobs, self.finished, executor.workers))
        while self.waiting or self._running or self._delayed:
            self._requeue_delayed()
            while self.waiting and len(self._running) < executor.workers and not stop.signal:
                self._start(self.waiting.popleft(), executor)
            ended = executor.wait(_POLL)
            if stop.signal:
                executor.close()
                finished = sum(job.result() is not None for job in self.jobs if job.folder not in self.failed)
                raise SweepStoppedError(stop.signal, self._folder, finished, len(self.jobs))
            for job, result in ended:
                self._settle(job, result)
            for job, progress in self._running.items():
                if record := progress.new_record():
                    self.tell(Update(job, "epoch", record))

    def _requeue_delayed(self) -> None:
        """Queue the jobs again whose folder was in use and whose delay is over."""
        now = time.monotonic()
        self.waiting.extend(job for due, job in self._delayed if due <= now)
        self._delayed = [(due, job) for due, job in self._delayed if due > now]

    def _start(self, job: Job, executor: Executor) -> None:
        self._running[job] = RunProgress(job.folder)
        executor.submit(job)
        self.tell(Update(job, "started"))

    def _settle(self, job: Job, result: JobResult) -> None:
        progress = self._running.pop(job)
        match result.kind:
            case "finished":
                self._finish(job)
            case "failed":
                self._fail(job, result.text)
            case "busy":
                self._delayed.append((time.monotonic() + _BUSY_DELAY, job))
                self.tell(Update(job, "busy", text=result.text))
            case "died":
                self._retry(job, progress, result.text)

    def _finish(self, job: Job) -> None:
        try:
            result = job.result()
        except RunFolderError as error:
            return self._fail(job, str(error))
        if result is None:
            return self._fail(job, f"{job.folder} has no result.json although its run has ended: was it removed?")
        self.tell(Update(job, "finished", result))

    def _retry(self, job: Job, progress: RunProgress, cause: str) -> None:
        """Queue the job again, unless it has died too often without writing a new checkpoint."""
        checkpoint = progress.checkpoint_time()
        deaths, where = self._deaths.get(job.folder, (0, -1))
        deaths = deaths + 1 if checkpoint == where else 1
        self._deaths[job.folder] = deaths, checkpoint
        if deaths > self._retries:
            return self._fail(job, f"{cause}, {deaths} times without a new checkpoint")
        self.waiting.append(job)
        self.tell(Update(job, "retrying", text=cause))

    def _fail(self, job: Job, reason: str) -> None:
        self.failed[job.folder] = reason
        self.tell(Update(job, "failed", text=reason))
