"""Find, download, verify and cache the files of data sets; `DataError` for files that cannot be used."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

from regrow.data.registry import DatasetInfo
from regrow.system import cache_folder, write_atomically
from regrow.text import optional_module

Bytes = NDArray[np.uint8]

# The folder of Debian packages such as dataset-fashion-mnist.
DEBIAN = Path("/usr/share/datasets")

# Bytes of SHA-256 before a decoded array in the cache.
_DIGEST = 32

_log = logging.getLogger(__name__)


class DataError(ValueError):
    """A data file is missing, truncated, corrupt or of the wrong kind; the message names it."""


def broken(path: Path, why: str, fix: str) -> DataError:
    """Return the error for a file that exists but cannot be used.

    >>> raise broken(Path("t10k-labels-idx1-ubyte.gz"), "ends after 4 bytes", "Download it again.")
    """
    return DataError(f"{path}: {why}. {fix}")


def require(module: str) -> ModuleType:
    """Import an optional module of the extra `data`; the error says how to install it."""
    package = {"PIL": "pillow"}.get(module.partition(".")[0], module.partition(".")[0])
    return optional_module(module, f"reading this needs {package}", extra="data")


def download_folder(name: str) -> Path:
    """Return the folder for downloads of data set `name`."""
    return cache_folder() / "data" / name


def folders(name: str, root: Path | str | None) -> list[Path]:
    """Return the folders to search for files of data set `name`, in this order.

    With `root`, this is only `root/name`; otherwise the folder of REGROW_DATA, the cache, and the folder of Debian's
    `dataset-*` packages.
    """
    if root is not None:
        return [_directory(root, "root") / name]
    found = [download_folder(name), DEBIAN / name]
    if chosen := os.environ.get("REGROW_DATA"):
        found.insert(0, _directory(chosen, "REGROW_DATA") / name)
    return found


def missing(info: DatasetInfo, searched: Sequence[Path]) -> DataError:
    """Return the error for a data set that is not in any of the folders."""
    places = ", ".join(map(str, searched))
    return DataError(f"{info.title} was not found (looked in {places}). {info.source}.")


def cached(sources: Sequence[Path], shape: tuple[int, ...], make: Callable[[], Bytes]) -> Bytes:
    """Return `make()`, from the cache if files with the same content were decoded before.

    Decoding CIFAR-10 takes several seconds, reading the decoded array a tenth of a second. A cache that cannot be read
    or written (full disk, read-only home), or whose content has changed, is not an error: the files are decoded again.
    """
    digest = hashlib.sha256(repr(shape).encode())
    for source in sources:
        with source.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    path = cache_folder() / "decoded" / f"{digest.hexdigest()[:32]}.bin"
    with contextlib.suppress(OSError):
        stored: Bytes = np.fromfile(path, dtype=np.uint8)
        content = stored[_DIGEST:]
        if content.size == math.prod(shape) and stored[:_DIGEST].tobytes() == hashlib.sha256(content.data).digest():
            return content.reshape(shape)
    array = np.ascontiguousarray(make())
    with contextlib.suppress(OSError):
        write_atomically(path, hashlib.sha256(array.data).digest() + array.tobytes())
    return array


def _directory(path: Path | str, what: str) -> Path:
    directory = Path(path).expanduser()
    if not directory.is_dir():
        raise DataError(f"{what} is {str(path)!r}, which is not a directory")
    return directory


@dataclass(frozen=True)
class Remote:
    """A file on the web and the SHA-256 of its content."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """File name on disk."""
        return self.url.rpartition("/")[2]


def check_download(path: Path, remote: Remote, info: DatasetInfo) -> None:
    """Raise if a file in the folder of downloads no longer has the content that was downloaded.

    Files in other folders are the user's own: they may be parts of the data set, and are not compared.
    """
    if path.parent != download_folder(info.name):
        return
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != remote.sha256:
            raise broken(path, "has changed since it was downloaded: its SHA-256 is wrong", "Delete it.")


def fetch(info: DatasetInfo, remotes: Sequence[Remote]) -> Path:
    """Download the missing files of `remotes` and return their folder.

    A download gets its final name only once it is complete and its hash matches; the hash is checked at every use.
    """
    folder = download_folder(info.name)
    for remote in remotes:
        path = folder / remote.name
        if path.is_file():
            check_download(path, remote, info)
            continue
        _log.info("downloading %s to %s", remote.url, path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(
                remote.url, str(path), hash_prefix=remote.sha256, progress=sys.stderr.isatty()
            )
        # torch reports a wrong hash as RuntimeError, urllib everything else as OSError or ValueError.
        except (OSError, RuntimeError, ValueError) as error:
            raise DataError(f"{path}: could not be downloaded from {remote.url} ({error}). {info.source}.") from error
    return folder
