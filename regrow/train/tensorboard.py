"""The curves of a run for TensorBoard, where it is installed; metrics.jsonl has the same numbers and more."""

from __future__ import annotations

import importlib.util
from typing import Any

from regrow.train.events import EpochEnded, Event, Finished, Started

_CURVES = ("loss", "test_loss", "top1", "top5", "lr", "sparsity", "delta", "flips", "iou", "images_per_second")


def installed() -> bool:
    """Return whether TensorBoard is there."""
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoard:
    """Listens to a run and writes events into its folder `tensorboard`; a resumed run goes on where it stopped."""

    def __init__(self) -> None:
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        """Write what `event` says."""
        match event:
            case Started():
                from torch.utils.tensorboard import SummaryWriter

                done = event.step // event.steps_per_epoch
                # What a killed process wrote after its last checkpoint is not shown.
                self._writer = SummaryWriter(event.folder / "tensorboard", purge_step=done + 1)
            case EpochEnded():
                self._write(event.record)
            case Finished():
                self.close()

    def close(self) -> None:
        """Write out what is buffered."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, record: dict[str, Any]) -> None:
        for name in _CURVES:
            if record.get(name) is not None:
                self._writer.add_scalar(name, record[name], record["epoch"])
        for layer, sparsity in record["layers"].items():
            self._writer.add_scalar(f"layers/{layer}", sparsity, record["epoch"])
