"""A pool of SLURM jobs, submitted with submitit; the run folders must be on a disk that all machines share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from regrow.sweep.events import ClusterError
from regrow.sweep.job import Job, Outcome
from regrow.sweep.pools import Resources
from regrow.sweep.work import work

# How long the runs may take to save when the sweep is stopped.
GRACE = 30.0
_GLANCE = 0.1


class SlurmPool:
    """Gives each run to SLURM as a job. What submitit needs to pass them on is in the folder `.slurm` of the sweep."""

    def __init__(self, workers: int, resources: Resources, folder: Path) -> None:
        submitit = _submitit()
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

    def wait(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Return the jobs that SLURM has ended, after at most about `seconds`."""
        deadline = time.monotonic() + seconds
        while not (ended := [pair for pair in self._busy if pair[0].done()]) and time.monotonic() < deadline:
            time.sleep(_GLANCE)
        self._busy = [pair for pair in self._busy if pair not in ended]
        return [(job, self._outcome(submitted)) for submitted, job in ended]

    def close(self) -> None:
        """Cancel all jobs; SLURM sends SIGTERM first, upon which they save."""
        for submitted, _ in self._busy:
            submitted.cancel(check=False)
        deadline = time.monotonic() + GRACE
        while self._busy and time.monotonic() < deadline:
            self.wait(_GLANCE)
        self._busy.clear()

    def _outcome(self, submitted: Any) -> Outcome:
        try:
            found = submitted.result()
        except self._failures as error:
            first, *_ = str(error).splitlines() or [type(error).__name__]
            return Outcome("died", f"SLURM job {submitted.job_id} did not complete ({first})")
        return found if isinstance(found, Outcome) else Outcome("died", f"it sent {found!r}")


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise ImportError('sweeps on SLURM need submitit: pip install "regrow[dist]"') from None
    return submitit
