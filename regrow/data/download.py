"""Fetches the original files of a data set, once, and only if they are what their authors published."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from regrow.data.catalog import Info
from regrow.data.errors import DataError
from regrow.data.files import download_folder

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Remote:
    """A file on the web and the SHA-256 of its content."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The name that the file has on the disk."""
        return self.url.rpartition("/")[2]


def fetch(info: Info, remotes: Sequence[Remote]) -> Path:
    """Download what is missing of `remotes` and return the folder that then holds them all.

    A file appears under its name only when it is complete and its hash is right.
    """
    folder = download_folder(info.name)
    for remote in remotes:
        path = folder / remote.name
        if path.is_file():
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
