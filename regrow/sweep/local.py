"""A pool of processes on this machine, one for each run, none of which outlives the driver for long."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from regrow.sweep.job import Job, Outcome

# What every run imports, and takes seconds: torch's optimizers need its compiler, even where nothing is compiled.
_PRELOAD = ["regrow.sweep.work", "torch._dynamo"]
# How long a run may take to finish its present step and save it before it is killed.
GRACE = 30.0


@dataclass(frozen=True)
class _Worker:
    job: Job
    process: BaseProcess
    outcome: Connection


class LocalPool:
    """Starts processes from a server that has imported torch already, so that a run begins in milliseconds."""

    def __init__(self, workers: int, *, threads: int = 1) -> None:
        self.workers, self._threads = workers, threads
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)
        self._busy: list[_Worker] = []

    def submit(self, job: Job) -> None:
        """Begin to work on `job` in a process of its own."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_serve, args=(job, self._threads, sender))
        process.start()
        sender.close()
        self._busy.append(_Worker(job, process, receiver))

    def wait(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Return the jobs whose process has ended, after at most `seconds`."""
        connection.wait([worker.process.sentinel for worker in self._busy], seconds)
        ended = [worker for worker in self._busy if not worker.process.is_alive()]
        self._busy = [worker for worker in self._busy if worker not in ended]
        return [(worker.job, _outcome(worker)) for worker in ended]

    def close(self) -> None:
        """Ask all runs to save and stop; kill those that do not within `GRACE` seconds."""
        for worker in self._busy:
            worker.process.terminate()
        deadline = time.monotonic() + GRACE
        for worker in self._busy:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()
        self._busy.clear()


def _outcome(worker: _Worker) -> Outcome:
    worker.process.join()
    try:
        found = worker.outcome.recv()
    except (EOFError, OSError):
        return Outcome("died", _cause_of_death(worker.process.exitcode or 0))
    finally:
        worker.outcome.close()
    return found if isinstance(found, Outcome) else Outcome("died", f"it sent {found!r}")


def _cause_of_death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed (SIGKILL; by the system if memory ran out)"
    return f"its process ended by {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"


def _serve(job: Job, threads: int, sender: Connection) -> None:
    """Work on `job` in the worker's process."""
    from regrow.sweep.work import work

    threading.Thread(target=_leave_with_the_driver, daemon=True).start()
    outcome = work(job, threads=threads)
    with contextlib.suppress(BrokenPipeError):  # the driver may be gone; the folder tells the next one
        sender.send(outcome)


def _leave_with_the_driver() -> None:
    """Stop this process when the driver is gone, however it went: save first, then leave in any case."""
    driver = multiprocessing.parent_process()
    assert driver is not None, "workers are started by a driver"
    driver.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)
