"""Files that are either whole or not there: what a run writes survives a kill at any moment."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path
from typing import Any

from regrow.system import write_atomically

FIXES = {
    errno.ENOSPC: "The disk is full: make room, then run the same command again to go on.",
    errno.EDQUOT: "The quota is used up: make room, then run the same command again to go on.",
    errno.EFBIG: "The file would be larger than this process may write (ulimit -f).",
    errno.EACCES: "The folder is not writable: choose another with --out.",
    errno.EROFS: "The file system is read-only: choose another folder with --out.",
}
"""What to do about an error of the system that keeps a file from being written."""


class FolderError(OSError):
    """A run folder cannot be used; the message says why and what to do."""


def write_whole(path: Path, content: bytes) -> None:
    """Write `path` so that a reader never meets half a file, whatever happens meanwhile."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_partial(folder: Path) -> None:
    """Remove what a killed process was writing; the caller holds the folder's lock."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\.[a-z]+\.(pt|json|toml|safetensors)\.[0-9a-f]{8}", path.name):
            path.unlink(missing_ok=True)


def remove_shards(folder: Path, keep: str) -> None:
    """Remove the sharded tensors of earlier checkpoints, and what a killed process was writing."""
    for path in folder.glob("shards-*"):
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON."""
    write_whole(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def cannot_write(path: Path, error: OSError) -> FolderError:
    """Say what kept `path` from being written, and what to do about it."""
    return FolderError(f"cannot write {path}: {error.strerror}. {FIXES.get(error.errno or 0, '')}".rstrip())
