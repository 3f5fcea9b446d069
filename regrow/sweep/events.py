"""What a sweep tells those who watch it, and the two ways in which it ends early."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from regrow.sweep.job import Job
from regrow.train.signals import StoppedError


@dataclass(frozen=True)
class Began:
    """The runs are known, and how many of them were finished before; with 0 workers there is nothing left to do."""

    jobs: Sequence[Job]
    finished: int
    workers: int


@dataclass(frozen=True)
class Update:
    """Something happened to one run."""

    job: Job
    state: Literal["started", "epoch", "finished", "retrying", "busy", "failed"]
    record: Mapping[str, Any] = field(default_factory=dict)
    """The last line of metrics.jsonl (epoch), or result.json (finished)."""
    text: str = ""
    """Why a run failed, is tried again or has to wait."""


Event = Began | Update
Listener = Callable[[Event], None]


class ClusterError(RuntimeError):
    """The cluster that a sweep was to run on cannot be used."""


class SweepError(RuntimeError):
    """Some runs failed; all the others are finished. `failed` has the reason for each folder."""

    def __init__(self, failed: Mapping[Path, str], runs: int) -> None:
        reasons = "".join(f"\n  {folder}: {reason}" for folder, reason in failed.items())
        super().__init__(f"{len(failed)} of {runs} runs failed, the others are finished:{reasons}")
        self.failed = dict(failed)


class SweepStoppedError(StoppedError):
    """The sweep was asked to stop; the runs under way have saved their state."""

    def __init__(self, number: int, folder: Path, finished: int, runs: int) -> None:
        super().__init__(number, 0, folder)
        self.args = (f"stopped by {signal.Signals(number).name} with {finished} of {runs} runs finished",)
        self.finished, self.runs = finished, runs
