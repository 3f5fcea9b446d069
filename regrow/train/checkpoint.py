"""Checkpoints: the state between two steps, written whole or not at all, read without running code."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from regrow.train.files import FolderError, write_whole

_FORMAT = 1


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path`; the old one stays until the new one is on the disk."""
    # In memory first: torch turns a full disk into errors that do not say so.
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, **state}, buffer)
    write_whole(path, buffer.getvalue())


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; a damaged one, or one that holds anything but data, is an error that names the file."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise FolderError(f"{path} is damaged ({error}). Remove it to start the run from the beginning.") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise FolderError(f"{path} has format {found!r}, this version of regrow reads {_FORMAT}.")
    return state
