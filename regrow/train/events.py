"""What a run tells those who watch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.analysis import Account
from regrow.train.config import Recipe


@dataclass(frozen=True)
class Started:
    """Everything is built and the first step is next."""

    recipe: Recipe
    folder: Path
    account: Account
    step: int
    steps_per_epoch: int
    total: int
    resumed: bool


@dataclass(frozen=True)
class Stepped:
    """One optimizer step is done."""

    step: int
    loss: float
    """Mean over the epoch so far."""


@dataclass(frozen=True)
class EpochEnded:
    """An epoch is trained and evaluated; `record` is its line in metrics.jsonl."""

    record: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """The run is complete; `result` is what result.json holds."""

    folder: Path
    result: dict[str, Any]


Event = Started | Stepped | EpochEnded | Finished
Listener = Callable[[Event], None]
