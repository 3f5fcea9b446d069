"""Checkpoints: the state between two steps, written whole or not at all, read without running code."""

from __future__ import annotations

import io
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from regrow.train.files import FolderError, write_whole

_FORMAT = 2
_SEAL = b"regrow checkpoint"
_SEALED = 16 + len(_SEAL)


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path`; the old one stays until the new one is on the disk."""
    # In memory first: torch turns a full disk into errors that do not say so.
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, **state}, buffer)
    content = buffer.getvalue()
    write_whole(path, content + _seal(content))


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; a damaged one, or one that holds anything but data, is an error that names the file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}.") from error
    body = content[:-_SEALED]
    if content[-_SEALED:] != _seal(body):
        raise _damaged(path, "its checksum is missing or wrong")
    try:
        state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception as error:  # a file that somebody has made up may raise anything
        raise _damaged(path, str(error)) from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise FolderError(f"{path} has format {found!r}, this version of regrow reads {_FORMAT}.")
    return state


def _damaged(path: Path, reason: str) -> FolderError:
    return FolderError(f"{path} is damaged ({reason}). Remove it to start the run from the beginning.")


def _seal(content: bytes) -> bytes:
    """Return what follows the content: torch does not notice a flipped bit in a tensor, and ignores what follows."""
    return blake2b(content, digest_size=_SEALED - len(_SEAL)).digest() + _SEAL
