"""What a worker does, wherever it is: train one run to its end, and say in a few words how that went."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from regrow.sweep.job import Job, Outcome
from regrow.train.config import RecipeError
from regrow.train.files import cannot_write
from regrow.train.lock import InUseError
from regrow.train.run import run
from regrow.train.signals import StoppedError

LOG = "log.txt"
"""The file in a run folder with what the run printed: warnings, and the traceback of an error that is a bug."""


def work(job: Job, *, threads: int = 1) -> Outcome:
    """Train `job`, or go on with it. No error leaves this function: it becomes the outcome."""
    try:
        with _logged(job.folder):
            return _train(job, threads)
    except OSError as error:
        return Outcome("failed", str(error))


def _train(job: Job, threads: int) -> Outcome:
    recipe = job.recipe
    if recipe.threads is None and not (job.folder / "recipe.toml").is_file():
        recipe = dataclasses.replace(recipe, threads=threads)
    try:
        run(recipe, job.folder)
    except InUseError as error:
        return Outcome("busy", str(error))
    except StoppedError as error:
        return Outcome("died", str(error))
    except Exception as error:
        if not isinstance(error, RecipeError | OSError):
            traceback.print_exc()
        return Outcome("failed", f"{type(error).__name__}: {error}" if _unexplained(error) else str(error))
    return Outcome("finished")


def _unexplained(error: Exception) -> bool:
    """Whether the error's text alone may not say what happened, as `KeyError: 'x'` does not."""
    return type(error).__module__ == "builtins"


@contextlib.contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """Send what this process and its libraries print to the run's log, which goes away if it stays empty."""
    path = folder / LOG
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise cannot_write(path, error) from error
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
