"""Jobs (one run of a sweep each), the interface of executors, and the executor for this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol

from regrow.runs.folder import InUseError, RunFolderError, check_not_in_a_run, open_inside, read_result, writing
from regrow.runs.recipe import Recipe, RecipeError
from regrow.runs.stop import GRACE, StoppedError, stop_with_parent

LOG = "log.txt"
"""File in a run folder with the output of the run: warnings, and the traceback of an unexpected error."""

# Imported once, because it takes seconds: torch's optimizers need its compiler even if nothing is compiled.
_PRELOAD = ["regrow.sweep.jobs", "regrow.train.run", "torch._dynamo"]


class ClusterError(RuntimeError):
    """The cluster of a sweep cannot be used."""


@dataclass(frozen=True)
class Job:
    """A recipe and its run folder, which is named after the recipe's content."""

    recipe: Recipe
    folder: Path
    key: str
    imports: frozenset[str] = frozenset()
    """Callables (`package.module:callable`) in the recipe that may be imported."""

    @property
    def name(self) -> str:
        """Name of the run folder, unique in the sweep."""
        return self.folder.name

    def resolved(self) -> Job:
        """Return the job with an absolute folder."""
        return replace(self, folder=self.folder.resolve())

    def result(self) -> Mapping[str, Any] | None:
        """Return the result if the run is finished; raise if the folder holds the result of another run."""
        result = read_result(self.folder)
        if result is not None and result.get("key") != self.key:
            raise RunFolderError(
                f"{self.folder} holds the result of another run. Move it away, or choose another folder with --out."
            )
        return result


@dataclass(frozen=True)
class JobResult:
    """How one attempt at a job ended.

    finished: result.json is written. failed: an error that a retry would repeat. busy: another process
    uses the folder. died: the worker was killed or stopped; the run resumes from its checkpoint.
    """

    kind: Literal["finished", "failed", "busy", "died"]
    text: str = ""


@dataclass(frozen=True)
class Resources:
    """Resources of each run, and the address of the cluster."""

    cpus: int = 1
    """Processors per run; also its number of threads unless the recipe sets one."""
    gpus: int = 0
    """GPUs per run, for recipes with device = "cuda"."""
    address: str | None = None
    """Ray: the address of a cluster, or "auto" for one on this machine; None starts one here.
    SLURM: "local" runs the jobs in processes on this machine, without SLURM."""
    partition: str | None = None
    """SLURM: the partition; None uses the cluster's default."""
    minutes: int = 24 * 60
    """SLURM: time limit of a job; a longer run continues in another job."""


class Executor(Protocol):
    """Executes jobs; the driver never submits more than `workers` at a time."""

    workers: int

    def submit(self, job: Job) -> None:
        """Start `job`."""

    def wait(self, seconds: float) -> list[tuple[Job, JobResult]]:
        """Return the jobs that have ended, after at most about `seconds`."""

    def close(self) -> None:
        """Let running jobs save their state, then end all workers."""


def jobs_for(recipes: Sequence[Recipe], folder: Path, imports: Collection[str] = ()) -> list[Job]:
    """Return a job for each recipe; equal recipes have the same folder."""
    check_not_in_a_run(folder)
    allowed = frozenset(imports)
    return [Job(recipe, folder / recipe.folder_name(), recipe.key(), allowed) for recipe in recipes]


def work(job: Job, *, threads: int = 1) -> JobResult:
    """Train or resume `job` in this process. Errors become the result; none is raised."""
    try:
        with _logged(job.folder):
            return _train(job, threads)
    except OSError as error:
        return JobResult("failed", str(error))


def _train(job: Job, threads: int) -> JobResult:
    from regrow.train.run import run  # imports torch, which the driver does not need

    recipe = job.recipe
    if recipe.threads is None and not (job.folder / "recipe.toml").is_file():
        recipe = dataclasses.replace(recipe, threads=threads)
    try:
        run(recipe, job.folder, imports=job.imports)
    except InUseError as error:
        return JobResult("busy", str(error))
    except StoppedError as error:
        return JobResult("died", str(error))
    except Exception as error:
        if not isinstance(error, RecipeError | OSError):
            traceback.print_exc()
        # The text of a builtin error may not say what happened: KeyError('x').
        builtin = type(error).__module__ == "builtins"
        return JobResult("failed", f"{type(error).__name__}: {error}" if builtin else str(error))
    return JobResult("finished")


@contextlib.contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """Redirect the output of this process to the run's log; remove the log if it stays empty."""
    path = folder / LOG
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        log = open_inside(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    before = [os.dup(stream) for stream in (1, 2)]
    for stream in (1, 2):
        os.dup2(log, stream)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, usual in zip((1, 2), before, strict=True):
            os.dup2(usual, stream)
            os.close(usual)
        if os.fstat(log).st_size == 0:
            path.unlink(missing_ok=True)
        os.close(log)


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
