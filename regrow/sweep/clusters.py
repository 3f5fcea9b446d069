"""Execute the runs of a sweep on Ray or SLURM; all machines must share the disk with the run folders."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from regrow.sweep.jobs import ClusterError, Job, JobResult, Resources, work
from regrow.text import optional_module

# Seconds in which the runs must save when the sweep is stopped, before their workers are killed.
GRACE = 30.0
_POLL = 0.1


class RayExecutor:
    """Submits each run to Ray as a task with the processors and GPUs it needs."""

    def __init__(self, workers: int | None, resources: Resources) -> None:
        self._ray = optional_module("ray", "sweeps on Ray need ray", extra="dist")
        self._own = not self._ray.is_initialized()
        if self._own:
            self._connect(workers, resources)
        self.workers = workers or self._capacity(resources)
        needs = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        # Only the driver retries: it can tell a run that makes progress from one that does not.
        self._task = self._ray.remote(_work_on_ray).options(max_retries=0, **needs)
        self._threads = resources.cpus
        self._busy: dict[Any, Job] = {}

    def submit(self, job: Job) -> None:
        """Submit `job` to Ray."""
        settings = {name: value for name, value in os.environ.items() if name == "REGROW_DATA"}
        self._busy[self._task.remote(job.resolved(), self._threads, settings)] = job

    def wait(self, seconds: float) -> list[tuple[Job, JobResult]]:
        """Return the jobs whose task has ended, after at most `seconds`."""
        if not self._busy:
            time.sleep(seconds)
            return []
        ended, _ = self._ray.wait(list(self._busy), num_returns=len(self._busy), timeout=seconds)
        return [(self._busy.pop(task), self._result(task)) for task in ended]

    def close(self) -> None:
        """Interrupt all runs, which save their state; disconnect, and end the cluster if it was started here."""
        for task in self._busy:
            self._ray.cancel(task)
        if self._busy:
            self._ray.wait(list(self._busy), num_returns=len(self._busy), timeout=GRACE)
        for task in self._busy:
            self._ray.cancel(task, force=True)
        self._busy.clear()
        if self._own:
            self._ray.shutdown()

    def _connect(self, workers: int | None, resources: Resources) -> None:
        here: dict[str, Any] = {"include_dashboard": False}
        if workers is not None:
            here |= {"num_cpus": workers * resources.cpus, "num_gpus": workers * resources.gpus}
        try:
            self._ray.init(
                resources.address,
                log_to_driver=False,
                logging_level="ERROR",
                **({} if resources.address else here),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ClusterError(
                f"cannot use the Ray cluster at {resources.address or 'this machine'}: {error}"
            ) from None

    def _capacity(self, resources: Resources) -> int:
        """Return how many runs fit on the cluster."""
        has = self._ray.cluster_resources()
        limits = [has.get("CPU", 0) // resources.cpus] if resources.cpus else []
        limits += [has.get("GPU", 0) // resources.gpus] if resources.gpus else []
        return max(1, int(min(limits, default=1)))

    def _result(self, task: Any) -> JobResult:
        try:
            return _checked(self._ray.get(task))
        except self._ray.exceptions.RayError as error:
            return JobResult("died", f"its Ray worker is gone ({type(error).__name__})")


class SlurmExecutor:
    """Submits each run to SLURM as a job. The files of submitit are in the folder `.slurm` of the sweep."""

    def __init__(self, workers: int, resources: Resources, folder: Path) -> None:
        submitit = optional_module("submitit", "sweeps on SLURM need submitit", extra="dist")
        self.workers, self._threads = workers, resources.cpus
        self._failures = (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError, OSError)
        cluster = resources.address or "slurm"
        try:
            self._executor = submitit.AutoExecutor(folder / ".slurm", cluster=cluster)
        except (RuntimeError, ValueError) as error:
            raise ClusterError(f"cannot submit jobs to {cluster}: {error}") from None
        partition = {"slurm_partition": resources.partition} if resources.partition else {}
        self._executor.update_parameters(
            name="regrow",
            timeout_min=resources.minutes,
            cpus_per_task=resources.cpus,
            gpus_per_node=resources.gpus,
            **partition,
        )
        self._busy: list[tuple[Any, Job]] = []

    def submit(self, job: Job) -> None:
        """Put `job` into SLURM's queue."""
        self._busy.append((self._executor.submit(work, job.resolved(), threads=self._threads), job))

    def wait(self, seconds: float) -> list[tuple[Job, JobResult]]:
        """Return the jobs that have ended, after at most about `seconds`."""
        deadline = time.monotonic() + seconds
        while not (ended := [pair for pair in self._busy if pair[0].done()]) and time.monotonic() < deadline:
            time.sleep(_POLL)
        self._busy = [pair for pair in self._busy if pair not in ended]
        return [(job, self._result(submitted)) for submitted, job in ended]

    def close(self) -> None:
        """Cancel all jobs; SLURM sends SIGTERM first, on which they save."""
        for submitted, _ in self._busy:
            submitted.cancel(check=False)
        deadline = time.monotonic() + GRACE
        while self._busy and time.monotonic() < deadline:
            self.wait(_POLL)
        self._busy.clear()

    def _result(self, submitted: Any) -> JobResult:
        try:
            return _checked(submitted.result())
        except self._failures as error:
            first, *_ = str(error).splitlines() or [type(error).__name__]
            return JobResult("died", f"SLURM job {submitted.job_id} did not complete ({first})")


def _checked(found: object) -> JobResult:
    return found if isinstance(found, JobResult) else JobResult("died", f"it sent {found!r}")


def _work_on_ray(job: Job, threads: int, settings: dict[str, str]) -> JobResult:
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    return work(job, threads=threads)
