"""Where data lives on this machine: the user's directory, the cache, and what was decoded before."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regrow.data.catalog import Info
from regrow.data.errors import DataError
from regrow.system import cache_folder

Bytes = NDArray[np.uint8]

# Where packages such as dataset-fashion-mnist put their files.
DEBIAN = Path("/usr/share/datasets")


def download_folder(name: str) -> Path:
    """Return the folder that downloads of data set `name` go to."""
    return cache_folder() / "data" / name


def folders(name: str, root: Path | str | None) -> list[Path]:
    """Return the folders in which files of data set `name` are looked for, in this order.

    With `root` it is `root/name` alone; otherwise the directory that REGROW_DATA names, the cache, and the
    place where Debian's `dataset-*` packages put their files.
    """
    if root is not None:
        return [_directory(root, "root") / name]
    found = [download_folder(name), DEBIAN / name]
    if chosen := os.environ.get("REGROW_DATA"):
        found.insert(0, _directory(chosen, "REGROW_DATA") / name)
    return found


def missing(info: Info, searched: Sequence[Path]) -> DataError:
    """Return the error for a data set that is in none of the folders."""
    places = ", ".join(map(str, searched))
    return DataError(f"{info.title} was not found (looked in {places}). {info.source}.")


def cached(sources: Sequence[Path], shape: tuple[int, ...], make: Callable[[], Bytes]) -> Bytes:
    """Return `make()`, from the cache if the same files (by content) were decoded before.

    Decoding CIFAR-10 takes several seconds, reading the decoded array a tenth of one. A cache that cannot be
    read or written (a full disk, a read-only home) only costs that time.
    """
    digest = hashlib.sha256(repr(shape).encode())
    for source in sources:
        with source.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    path = cache_folder() / "decoded" / f"{digest.hexdigest()[:32]}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):
        array: Bytes = np.load(path, allow_pickle=False)
        if array.shape == shape and array.dtype == np.uint8:
            return array
    array = make()
    with contextlib.suppress(OSError):
        _save(path, array)
    return array


def _directory(path: Path | str, what: str) -> Path:
    directory = Path(path).expanduser()
    if not directory.is_dir():
        raise DataError(f"{what} is {str(path)!r}, which is not a directory")
    return directory


def _save(path: Path, array: Bytes) -> None:
    """Write beside and rename, so that a reader never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        try:
            np.save(file, array)
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
