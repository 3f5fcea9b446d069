"""Execute the runs of a sweep in processes on this machine, one per run; they stop when the driver does."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from regrow.runs.stop import GRACE, stop_with_parent
from regrow.sweep.jobs import Job, JobResult, work

# Imported once, because it takes seconds: torch's optimizers need its compiler even if nothing is compiled.
_PRELOAD = ["regrow.sweep.jobs", "regrow.train.run", "torch._dynamo"]


@dataclass(frozen=True)
class _Worker:
    job: Job
    process: BaseProcess
    result: Any  # the end of a pipe, whose class differs on Windows


class LocalExecutor:
    """Forks processes from a server that has imported torch already, so that a run starts in milliseconds."""

    def __init__(self, workers: int, *, threads: int = 1) -> None:
        self.workers, self._threads = workers, threads
        if sys.platform == "win32":  # which has no fork: every run imports torch by itself
            self._context = multiprocessing.get_context("spawn")
        else:
            self._context = multiprocessing.get_context("forkserver")
            self._context.set_forkserver_preload(_PRELOAD)
        self._busy: list[_Worker] = []

    def submit(self, job: Job) -> None:
        """Start `job` in its own process."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_serve, args=(job, self._threads, sender))
        process.start()
        sender.close()
        self._busy.append(_Worker(job, process, receiver))

    def wait(self, seconds: float) -> list[tuple[Job, JobResult]]:
        """Return the jobs whose process has ended, after at most `seconds`."""
        connection.wait([worker.process.sentinel for worker in self._busy], seconds)
        ended = [worker for worker in self._busy if not worker.process.is_alive()]
        self._busy = [worker for worker in self._busy if worker not in ended]
        return [(worker.job, _result(worker)) for worker in ended]

    def close(self) -> None:
        """Ask all runs to save and stop; kill those that take longer than `GRACE` seconds."""
        for worker in self._busy:
            worker.process.terminate()
        deadline = time.monotonic() + GRACE
        for worker in self._busy:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()
        self._busy.clear()


def _result(worker: _Worker) -> JobResult:
    worker.process.join()
    try:
        found = worker.result.recv()
    except (EOFError, OSError):
        return JobResult("died", _cause_of_death(worker.process.exitcode or 0))
    finally:
        worker.result.close()
    return found if isinstance(found, JobResult) else JobResult("died", f"it sent {found!r}")


def _cause_of_death(code: int) -> str:
    if code >= 0:
        return f"its process ended by exit code {code}"
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        return "its process was killed (SIGKILL; by the system if memory ran out)"
    return f"its process ended by {name}"


def _serve(job: Job, threads: int, sender: Connection) -> None:
    """Work on `job` in the worker's process."""
    with stop_with_parent():
        result = work(job, threads=threads)
    with contextlib.suppress(BrokenPipeError):  # without a driver, the next one finds the result in the folder
        sender.send(result)
