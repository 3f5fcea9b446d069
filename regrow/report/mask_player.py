"""A page that plays the masks of a training: which weights were pruned, regrown and settled, and when."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regrow.system import write_atomically
from regrow.text import html_page, script_data

_MOST_WEIGHTS = 2_000_000


class Masked(Protocol):
    """A pruner, or anything else with masks."""

    @property
    def masks(self) -> Mapping[str, Tensor]:
        """The present masks by name."""


class MaskRecorder:
    """Records the masks of a pruner, and writes them as one HTML file that plays them.

    >>> recorder = MaskRecorder(pruner)              # doctest: +SKIP
    >>> for epoch in range(epochs):                  # doctest: +SKIP
    ...     train(model)
    ...     recorder.record(f"epoch {epoch + 1}")
    >>> recorder.write("masks.html", title="ResNet-8 on MNIST, DPF to 95 %")    # doctest: +SKIP
    """

    def __init__(self, pruner: Masked) -> None:
        self._pruner = pruner
        self._labels: list[str] = []
        self._frames: list[bytes] = []
        count = sum(mask.numel() for mask in pruner.masks.values())
        if count > _MOST_WEIGHTS:
            raise ValueError(f"a page plays at most {_MOST_WEIGHTS:,} weights; the pruner has {count:,}")

    def record(self, label: str) -> None:
        """Keep the present masks; `label` names this moment, such as "epoch 3"."""
        bits = [_plane(mask.detach().cpu().numpy()).reshape(-1) for mask in self._pruner.masks.values()]
        self._labels.append(label)
        self._frames.append(np.packbits(np.concatenate(bits), bitorder="little").tobytes())

    def write(self, path: str | Path, *, title: str, note: str = "") -> Path:
        """Write the page, which needs no other file and no server."""
        if len(self._frames) < 2:
            raise ValueError(f"a page plays at least two masks, {len(self._frames)} recorded: call record() more often")
        frames = np.stack([np.frombuffer(frame, np.uint8) for frame in self._frames])
        changes = frames ^ np.concatenate([np.zeros_like(frames[:1]), frames[:-1]])
        planes = {name: _plane(mask.cpu().numpy()) for name, mask in self._pruner.masks.items()}
        data = {
            "title": title,
            "note": note,
            "labels": self._labels,
            "layers": [
                {"name": name.removesuffix(".weight"), "width": plane.shape[1], "height": plane.shape[0]}
                for name, plane in planes.items()
            ],
            "frames": zlib.compress(changes.tobytes(), 9),
        }
        template = resources.files("regrow.report").joinpath("mask_player.html").read_text(encoding="utf-8")
        path = Path(path)
        write_atomically(path, html_page(template, {"data": script_data(data)}).encode())
        return path


def _plane(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A weight's mask as a picture: filters side by side, input channels below each other, windows unchanged."""
    filters, inputs = mask.shape[0], mask.shape[1] if mask.ndim > 1 else 1
    rows, cols = mask.shape[2:] if mask.ndim == 4 else (1, mask[0].size // inputs)
    plane = mask.reshape(filters, inputs, rows, cols).transpose(1, 2, 0, 3).reshape(inputs * rows, filters * cols)
    if plane.shape[1] > 8 * plane.shape[0] and filters % 4 == 0:  # few input channels: four lines of filters
        plane = np.concatenate(np.split(plane, 4, axis=1))
    return plane
