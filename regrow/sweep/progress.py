"""How far a run is, seen from outside: its folder tells, whichever machine works on it."""

from __future__ import annotations

import json
from typing import Any

from regrow.sweep.job import Job


class Progress:
    """Follows the metrics of a run without reading them again and again."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._metrics, self._checkpoint = job.folder / "metrics.jsonl", job.folder / "checkpoint.pt"
        self._seen = self._size()

    def news(self) -> dict[str, Any] | None:
        """Return the record of the last epoch if it has ended since the last call."""
        size = self._size()
        if size <= self._seen:
            self._seen = size  # a run that goes on cuts off what its checkpoint does not know
            return None
        try:
            with self._metrics.open("rb") as file:
                file.seek(self._seen)
                *lines, _ = file.read().split(b"\n")
        except OSError:
            return None  # it was moved or removed just now
        self._seen += sum(len(line) + 1 for line in lines)
        try:
            record = json.loads(lines[-1])
        except (IndexError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def place(self) -> int:
        """Return a number that changes whenever a checkpoint is written."""
        try:
            return self._checkpoint.stat().st_mtime_ns
        except OSError:
            return 0

    def _size(self) -> int:
        try:
            return self._metrics.stat().st_size
        except OSError:
            return 0
