"""Events of a run, for listeners such as the terminal display and TensorBoard."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from regrow.runs.recipe import Recipe

if TYPE_CHECKING:
    from regrow.analysis import Account

_CURVES = ("loss", "test_loss", "top1", "top5", "lr", "sparsity", "delta", "flips", "iou", "images_per_second")


@dataclass(frozen=True)
class Started:
    """Everything is built; the first step comes next."""

    recipe: Recipe
    folder: Path
    account: Account
    step: int
    steps_per_epoch: int
    total: int
    resumed: bool
    every: int | None = None
    """Optimizer steps between mask updates, of methods that have a period."""


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
    """The run is complete; `result` is the content of result.json."""

    folder: Path
    result: dict[str, Any]


Event = Started | Stepped | EpochEnded | Finished
Listener = Callable[[Event], None]


def has_tensorboard() -> bool:
    """Return whether TensorBoard is installed."""
    return importlib.util.find_spec("tensorboard") is not None


class TrackerRun(Protocol):
    """A run of a tracker, such as the one that `wandb.init()` returns."""

    def log(self, data: dict[str, Any], *, step: int) -> Any:
        """Record numbers of a step."""


class Tracker:
    """Listener that sends the curves of a run to a tracker with `log(numbers, step=epoch)`, as Weights & Biases has.

    >>> run(recipe, listeners=[Tracker(wandb.init())])  # doctest: +SKIP
    """

    def __init__(self, tracker: TrackerRun) -> None:
        self._tracker = tracker

    def __call__(self, event: Event) -> None:
        """Send the record of an epoch."""
        if isinstance(event, EpochEnded):
            self._tracker.log(_numbers(event.record), step=event.record["epoch"])


class TensorBoard:
    """Listener that writes the curves of a run to its folder `tensorboard`; metrics.jsonl has the same numbers."""

    def __init__(self) -> None:
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        """Write `event`."""
        match event:
            case Started():
                from torch.utils.tensorboard import SummaryWriter

                done = event.step // event.steps_per_epoch
                # Hides the points that a killed process wrote after its last checkpoint.
                self._writer = SummaryWriter(event.folder / "tensorboard", purge_step=done + 1)
            case EpochEnded():
                for name, value in _numbers(event.record).items():
                    self._writer.add_scalar(name, value, event.record["epoch"])
            case Finished():
                self.close()

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of an epoch that are drawn as curves."""
    curves = {name: record[name] for name in _CURVES if record.get(name) is not None}
    return curves | {f"layers/{layer}": sparsity for layer, sparsity in record["layers"].items()}
