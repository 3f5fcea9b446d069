"""Says in one voice what is wrong with a file of data, and what to do about it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType


class DataError(ValueError):
    """A file of data is missing, truncated, corrupt or not what it should be; the message names it."""


def broken(path: Path, why: str, fix: str) -> DataError:
    """Return the error for a file that is there but cannot be used.

    >>> raise broken(Path("t10k-labels-idx1-ubyte.gz"), "ends after 4 bytes", "Download it again.")
    """
    return DataError(f"{path}: {why}. {fix}")


def require(module: str) -> ModuleType:
    """Import an optional module of the extra `data`, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"PIL": "pillow"}.get(module.partition(".")[0], module.partition(".")[0])
        raise ImportError(f'reading this needs {package}: pip install "regrow[data]"') from error
