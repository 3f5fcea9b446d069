"""The cache folder for built kernels and measurements. It may be deleted at any time."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from regrow.host.disk import write_atomically
from regrow.host.warn import warn


def cache_folder() -> Path:
    """Return `$REGROW_CACHE`, or `regrow` in the user's cache folder."""
    chosen = os.environ.get("REGROW_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "regrow"


def remember(path: Path, content: bytes) -> bool:
    """Write a file to the cache; warn and return False if that is impossible."""
    try:
        write_atomically(path, content)
    except OSError as error:
        warn(
            f"the cache folder {path.parent} cannot be written ({error.strerror or error}): kernels and measurements "
            "for this model are lost when the program ends. Set REGROW_CACHE to a writable folder.",
            RuntimeWarning,
        )
        return False
    return True


def digest(content: bytes) -> str:
    """Return the SHA-256 digest used in cache keys, shortened."""
    return hashlib.sha256(content).hexdigest()[:20]
