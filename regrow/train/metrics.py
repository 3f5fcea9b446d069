"""metrics.jsonl: one line per epoch, cut back to the checkpoint when a run goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from regrow.train.files import cannot_write


class Metrics:
    """Appends records to a file; `position` says how much of it belongs to the present state."""

    def __init__(self, path: Path, position: int) -> None:
        self.path = path
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
    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
