"""Errors as a person reads them: one line that says what is wrong and what would be right, and an exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FAILED, MISUSED = 1, 2


def explain(error: Exception) -> int:
    """Print an error that has an explanation in one line and return the exit code; raise what is a bug of ours."""
    from regrow.core.distributed import RankMismatchError
    from regrow.train.config import RecipeError
    from regrow.train.files import FIXES, cannot_write
    from regrow.train.loop import DivergedError
    from regrow.train.world import FirstFailedError, rank

    if isinstance(error, RecipeError):
        code = MISUSED
    elif _expected(error):
        code = FAILED
    elif isinstance(error, OSError) and error.errno in FIXES and error.filename:
        code, error = FAILED, cannot_write(Path(error.filename), error)
    else:
        raise error
    if os.environ.get("REGROW_DEBUG"):
        raise error
    # What all processes of a run find out at once is said by the first.
    if not (rank() and isinstance(error, RecipeError | DivergedError | RankMismatchError | FirstFailedError)):
        print(f"regrow: {error}", file=sys.stderr)
    return code


def check_file(path: Path, usual: str) -> None:
    """Refuse a folder where a file is to be written, before the work is done; `usual` is the name it might have."""
    from regrow.train.config import RecipeError

    if path.is_dir():
        raise RecipeError(f"--out is a file, and {path} is a folder. Did you mean {path / usual}?")


def _expected(error: Exception) -> bool:
    from regrow.core.distributed import RankMismatchError
    from regrow.data import DataError
    from regrow.files.model_file import FormatError
    from regrow.sweep import ClusterError, SweepError
    from regrow.train.files import FolderError
    from regrow.train.loop import DivergedError
    from regrow.train.world import FirstFailedError, ProcessesDiedError

    if isinstance(error, ImportError):
        return "regrow[" in str(error)  # an extra is not installed, and the message says which
    known = (
        DataError,
        FormatError,
        FolderError,
        DivergedError,
        SweepError,
        ClusterError,
        RankMismatchError,
        FirstFailedError,
        ProcessesDiedError,
    )
    return isinstance(error, known)
