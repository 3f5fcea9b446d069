"""What is kept from one program to the next: built kernels and measurements. It may be emptied at any time."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from regrow.host.disk import write_atomically
from regrow.host.warn import warn


def cache_folder() -> Path:
    """Where built kernels and measured tiles are kept: `$REGROW_CACHE`, or the user's cache folder."""
    chosen = os.environ.get("REGROW_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "regrow"


def remember(path: Path, content: bytes) -> bool:
    """Write a file of the cache; where that is impossible, say so and go on without."""
    try:
        write_atomically(path, content)
    except OSError as error:
        warn(
            f"{path.parent} cannot be written ({error.strerror or error}): what is built and measured for this model "
            "is lost when the program ends. Set REGROW_CACHE to a folder that can be.",
            RuntimeWarning,
        )
        return False
    return True


def digest(content: bytes) -> str:
    """What something is known by."""
    return hashlib.sha256(content).hexdigest()[:20]
