"""Runs many recipes: finished ones are skipped, interrupted ones go on, and no failure takes the others down."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from regrow.sweep.events import Began, Event, Listener, SweepError, SweepStoppedError, Update
from regrow.sweep.job import Job, Outcome, jobs_for
from regrow.sweep.pools import Pool, Resources, check_numbers, check_place, make_pool
from regrow.sweep.progress import Progress
from regrow.train.config import Recipe
from regrow.train.files import FolderError
from regrow.train.signals import Stop, stop_requests

# How often signals and progress are looked at, and how long a folder that somebody else has is left alone.
_GLANCE, _PATIENCE = 0.25, 1.0


def run_all(
    recipes: Sequence[Recipe],
    folder: Path | str,
    *,
    workers: int | None = None,
    on: str = "local",
    resources: Resources | None = None,
    retries: int = 3,
    listener: Listener | None = None,
) -> list[Path]:
    """Train all `recipes` in folders of `folder` and return those folders, in the order of the recipes.

    A run's folder is named after its content, so the same call finds what is finished and goes on with the rest,
    whatever ended the call before. Each run has a process of its own (`workers` at a time; as many as there are
    processors by default). A run whose process dies is tried again from its last checkpoint; one that dies more than
    `retries` times at the same place, or raises an error, counts as failed. When all others are finished, failures are
    raised as one `SweepError`. SIGINT and SIGTERM let the runs save and raise `SweepStoppedError`.

    >>> run_all([Recipe(seed=seed) for seed in range(3)], "runs/seeds")  # doctest: +SKIP
    [PosixPath('runs/seeds/digits-small-dpf90-s0-9c5ed4ed'), ...]
    """
    check_place(on)
    resources = resources or Resources()
    check_numbers(workers=workers, retries=retries, resources=resources)
    jobs = jobs_for(recipes, Path(folder))
    sweep = _Sweep(list({job.folder: job for job in jobs}.values()), Path(folder), retries, listener or _nobody)
    if sweep.waiting:
        with (
            stop_requests() as stop,
            contextlib.closing(make_pool(on, workers, resources, sweep.waiting, Path(folder))) as pool,
        ):
            sweep.complete(pool, stop)
    else:
        sweep.tell(Began(sweep.jobs, sweep.finished, 0))
    if sweep.failed:
        raise SweepError(sweep.failed, len(sweep.jobs))
    return [job.folder for job in jobs]


def _nobody(event: Event) -> None:
    pass


class _Sweep:
    """The state of a driver: it is all in the run folders, so that another driver can take over at any moment."""

    def __init__(self, jobs: list[Job], folder: Path, retries: int, listener: Listener) -> None:
        self.jobs, self._folder, self._retries, self.tell = jobs, folder, retries, listener
        self.waiting: deque[Job] = deque()
        self.failed: dict[Path, str] = {}
        self.finished = 0
        self._put_off: list[tuple[float, Job]] = []
        self._running: dict[Path, Progress] = {}
        self._deaths: dict[Path, tuple[int, int]] = {}
        for job in jobs:
            self._sort_in(job)

    def _sort_in(self, job: Job) -> None:
        try:
            if job.result() is None:
                self.waiting.append(job)
            else:
                self.finished += 1
        except FolderError as error:
            self.failed[job.folder] = str(error)

    def complete(self, pool: Pool, stop: Stop) -> None:
        """Work until no run is left."""
        self.tell(Began(self.jobs, self.finished, pool.workers))
        while self.waiting or self._running or self._put_off:
            self._look_again()
            while self.waiting and len(self._running) < pool.workers and not stop.signal:
                self._start(self.waiting.popleft(), pool)
            ended = pool.wait(_GLANCE)
            if stop.signal:
                pool.close()
                finished = sum(job.result() is not None for job in self.jobs if job.folder not in self.failed)
                raise SweepStoppedError(stop.signal, self._folder, finished, len(self.jobs))
            for job, outcome in ended:
                self._settle(job, outcome)
            for progress in self._running.values():
                if record := progress.news():
                    self.tell(Update(progress.job, "epoch", record))

    def _look_again(self) -> None:
        """Take back the runs that somebody else had, when it is their time."""
        now = time.monotonic()
        self.waiting.extend(job for due, job in self._put_off if due <= now)
        self._put_off = [(due, job) for due, job in self._put_off if due > now]

    def _start(self, job: Job, pool: Pool) -> None:
        self._running[job.folder] = Progress(job)
        pool.submit(job)
        self.tell(Update(job, "started"))

    def _settle(self, job: Job, outcome: Outcome) -> None:
        progress = self._running.pop(job.folder)
        match outcome.kind:
            case "finished":
                self._finish(job)
            case "failed":
                self._fail(job, outcome.text)
            case "busy":
                self._put_off.append((time.monotonic() + _PATIENCE, job))
                self.tell(Update(job, "busy", text=outcome.text))
            case "died":
                self._retry(job, progress, outcome.text)

    def _finish(self, job: Job) -> None:
        try:
            result = job.result()
        except FolderError as error:
            return self._fail(job, str(error))
        if result is None:
            return self._fail(job, f"{job.folder} has no result.json although its run has ended: was it removed?")
        self.tell(Update(job, "finished", result))

    def _retry(self, job: Job, progress: Progress, cause: str) -> None:
        """Try again, unless the run has died too often without getting any further."""
        place = progress.place()
        deaths, where = self._deaths.get(job.folder, (0, -1))
        deaths = deaths + 1 if place == where else 1
        self._deaths[job.folder] = deaths, place
        if deaths > self._retries:
            return self._fail(job, f"{cause}, {deaths} times at the same place")
        self.waiting.append(job)
        self.tell(Update(job, "retrying", text=cause))

    def _fail(self, job: Job, reason: str) -> None:
        self.failed[job.folder] = reason
        self.tell(Update(job, "failed", text=reason))
