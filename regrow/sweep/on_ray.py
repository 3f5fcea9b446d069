"""A pool on a Ray cluster, this machine's or another's; the run folders must be on a disk that all machines share."""

from __future__ import annotations

import os
import time
from typing import Any

from regrow.sweep.events import ClusterError
from regrow.sweep.job import Job, Outcome
from regrow.sweep.pools import Resources
from regrow.sweep.work import work

# How long the runs may take to save when the sweep is stopped, before their workers are killed.
GRACE = 30.0


class RayPool:
    """Gives each run to Ray as a task with the processors and GPUs it needs."""

    def __init__(self, workers: int | None, resources: Resources) -> None:
        self._ray = _ray()
        self._own = not self._ray.is_initialized()
        if self._own:
            self._connect(workers, resources)
        self.workers = workers or self._room(resources)
        needs = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        # The driver retries, since it alone can tell a run that gets nowhere from one that goes on.
        self._task = self._ray.remote(_on_a_worker).options(max_retries=0, **needs)
        self._threads = resources.cpus
        self._busy: dict[Any, Job] = {}

    def submit(self, job: Job) -> None:
        """Give `job` to Ray."""
        settings = {name: value for name, value in os.environ.items() if name == "REGROW_DATA"}
        self._busy[self._task.remote(job.resolved(), self._threads, settings)] = job

    def wait(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Return the jobs whose task has ended, after at most `seconds`."""
        if not self._busy:
            time.sleep(seconds)
            return []
        ended, _ = self._ray.wait(list(self._busy), num_returns=len(self._busy), timeout=seconds)
        return [(self._busy.pop(task), self._outcome(task)) for task in ended]

    def close(self) -> None:
        """Interrupt all runs, which save; leave the cluster, and end it if it was started here."""
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

    def _room(self, resources: Resources) -> int:
        """Return how many runs the cluster has room for."""
        has = self._ray.cluster_resources()
        rooms = [has.get("CPU", 0) // resources.cpus] if resources.cpus else []
        rooms += [has.get("GPU", 0) // resources.gpus] if resources.gpus else []
        return max(1, int(min(rooms, default=1)))

    def _outcome(self, task: Any) -> Outcome:
        try:
            found = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return Outcome("died", f"its Ray worker is gone ({type(error).__name__})")
        return found if isinstance(found, Outcome) else Outcome("died", f"it sent {found!r}")


def _on_a_worker(job: Job, threads: int, settings: dict[str, str]) -> Outcome:
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    return work(job, threads=threads)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError('sweeps on Ray need ray: pip install "regrow[dist]"') from None
    return ray
