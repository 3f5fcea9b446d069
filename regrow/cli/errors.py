"""Show expected errors as one line with an exit code; anything else is a bug and keeps its traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

FAILED, MISUSED = 1, 2


def explain(error: Exception) -> int:
    """Print an expected error in one line and return the exit code; raise an unexpected one."""
    from regrow.core.distributed import RankMismatchError
    from regrow.data import DataError
    from regrow.files.model_file import FormatError
    from regrow.runs.folder import FIXES, RunFolderError, cannot_write
    from regrow.runs.recipe import UsageError
    from regrow.runs.stop import StoppedError
    from regrow.sweep import ClusterError, SweepError
    from regrow.train.distributed import ProcessesDiedError, Rank0Error, launched_rank
    from regrow.train.loop import DivergedError

    of_all_ranks = DivergedError | RankMismatchError | Rank0Error
    expected = of_all_ranks | DataError | FormatError | RunFolderError | SweepError | ClusterError | ProcessesDiedError
    if isinstance(error, UsageError):
        code = MISUSED
    elif isinstance(error, StoppedError):
        code, error = 128 + error.signal, RuntimeError(f"{error}, all saved. Resume with the same command.")
    elif isinstance(error, expected) or (isinstance(error, ImportError) and "regrow[" in str(error)):
        code = FAILED  # an ImportError of ours says which extra is not installed
    elif isinstance(error, OSError) and error.errno in FIXES and error.filename:
        code, error = FAILED, cannot_write(Path(error.filename), error)
    elif isinstance(error, OSError):  # the machine's: a missing temporary folder, too many open files
        code = FAILED
    elif isinstance(error, MemoryError) or "allocate memory" in str(error):
        code, error = FAILED, MemoryError("there is not enough memory for this.")
    else:
        raise error
    if os.environ.get("REGROW_DEBUG"):
        raise error
    # All ranks meet these errors at once; only rank 0 prints them.
    if not (launched_rank() and isinstance(error, UsageError | of_all_ranks)):
        with contextlib.suppress(OSError):  # standard error may be closed or full, too
            print(f"regrow: {error}", file=sys.stderr)
    return code


def flush_output() -> None:
    """Write what standard output still holds; if it is closed or full, discard the rest."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_file(path: Path, usual: str) -> None:
    """Raise if `path` is a folder, before any work is done; `usual` is a file name to suggest."""
    from regrow.runs.recipe import UsageError

    if path.is_dir():
        raise UsageError(f"--out must be a file, but {path} is a folder. Did you mean {path / usual}?")
