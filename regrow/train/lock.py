"""One process per run folder: a second one is told who has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from regrow.train.files import FolderError, cannot_write


class InUseError(FolderError):
    """Another process has the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process. The system lets go of the lock however the process ends, even killed."""
    path = folder / "lock"
    try:
        file = path.open("a+")
    except OSError as error:
        raise cannot_write(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise InUseError(f"{folder} is in use by {holder}. Stop it, or give another folder with --out.") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} (since {time.strftime('%H:%M')})")
        file.flush()
        yield
        file.truncate(0)
