"""metrics.jsonl: one line per epoch, cut back to the checkpoint when a run goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from regrow.train.files import FolderError, cannot_write


class Metrics:
    """Appends records to a file; `position` says how much of it belongs to the present state."""

    def __init__(self, path: Path, position: int) -> None:
        self.path = path
        if not 0 <= position <= (path.stat().st_size if path.exists() else 0):
            raise FolderError(f"{path} lacks lines that the checkpoint beside it counts. Restore it, or remove both.")
        try:
            self._file = path.open("r+b" if path.exists() else "w+b")
            self._file.truncate(position)
            self._file.seek(position)
        except OSError as error:
            raise cannot_write(path, error) from error

    @property
    def position(self) -> int:
        """The length of what was written, in bytes."""
        return self._file.tell()

    def append(self, record: dict[str, Any]) -> None:
        """Write a line and see it to the disk: a checkpoint that counts it may follow."""
        try:
            self._file.write((json.dumps(record, allow_nan=False) + "\n").encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run; half a line at the end of a running one is left out."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    return [_record(path, number, line) for number, line in enumerate(lines, 1) if line.endswith(b"\n")]


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path}, line {number} is damaged: {error}") from None
    if not isinstance(record, dict):
        raise FolderError(f"{path}, line {number} is damaged: it holds {line[:40]!r} and no record")
    return record
