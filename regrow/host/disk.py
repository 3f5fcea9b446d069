"""Files that are either whole or not there: models, checkpoints, and what is kept of builds and measurements."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: str | Path, data: bytes) -> None:
    """Replace `path` by `data`: a crash at any moment leaves the old file or the new one, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # named as the user knows it
    finally:
        partial.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(folder: Path) -> None:
    """Make the renaming itself survive a power cut, where the system can open folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
