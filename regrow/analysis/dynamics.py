"""How masks change during training: flips, overlap, last change of each element (Sec. 6 and Appendix of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regrow.core.bits import pack, unpack


@dataclass(frozen=True)
class Change:
    """The difference between two consecutive masks, over all targets."""

    flips: int
    """Number of elements that differ."""
    flip_ratio: float
    """Fraction of all elements that differ."""
    iou: float
    """Intersection over union of the elements that the two masks keep; 1 if neither keeps any."""
    sparsity: float
    """Fraction of elements that the later mask prunes."""


@dataclass(frozen=True)
class Epoch:
    """The changes of masks in one epoch."""

    epoch: int
    """Counted from 1."""
    change: Change
    """Between the ends of the previous epoch (or the initial masks) and of this one."""
    refreshes: int
    """Number of observations in the epoch."""
    refresh_flip_ratio: float
    """Mean flip ratio between consecutive observations; 0 without observations."""
    refresh_iou: float
    """Mean overlap between consecutive observations; 1 without observations."""
    layers: Mapping[str, float]
    """Sparsity of each target at the end."""


class Dynamics:
    """Record of how masks change: five bytes per element, and a few passes over them per observation.

    >>> masks = {"w": torch.tensor([True, True, False, False])}
    >>> dynamics = Dynamics(masks)
    >>> dynamics.observe({"w": torch.tensor([True, False, True, False])}).flip_ratio
    0.5
    >>> dynamics.epoch_end({"w": torch.tensor([True, False, True, False])}).epoch
    1
    >>> dynamics.still_changing()
    [0.5, 0.0]
    """

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        if not masks:
            raise ValueError("no masks to watch: pass the pruner's masks, {parameter name: bool tensor}.")
        self._shapes = {name: mask.shape for name, mask in masks.items()}
        self._mask = self._epoch_mask = self._flatten(masks)
        self._kept = self._epoch_kept = _count(self._mask)
        self._moved = torch.zeros_like(self._mask)
        self._last_change = torch.zeros(self._mask.shape, dtype=torch.int16, device=self._mask.device)
        self._epochs = self._refreshes = 0
        self._flip_ratios = self._ious = 0.0

    def observe(self, masks: Mapping[str, Tensor]) -> Change:
        """Compare the masks with those of the last observation; call it after every mask update."""
        change = self._advance(self._flatten(masks))
        self._refreshes += 1
        self._flip_ratios += change.flip_ratio
        self._ious += change.iou
        return change

    def epoch_end(self, masks: Mapping[str, Tensor]) -> Epoch:
        """Finish an epoch; changes since the last observation belong to it, too."""
        now = self._flatten(masks)
        self._advance(now)
        self._epochs += 1
        # Changes after epoch 32,767 are recorded as changes in that epoch.
        self._last_change.masked_fill_(self._moved, min(self._epochs, torch.iinfo(torch.int16).max))
        self._moved.zero_()
        record = Epoch(
            epoch=self._epochs,
            change=_change(self._epoch_mask ^ now, self._epoch_kept, self._kept),
            refreshes=self._refreshes,
            refresh_flip_ratio=self._flip_ratios / self._refreshes if self._refreshes else 0.0,
            refresh_iou=self._ious / self._refreshes if self._refreshes else 1.0,
            layers={name: 1 - _count(mask) / max(mask.numel(), 1) for name, mask in masks.items()},
        )
        self._epoch_mask, self._epoch_kept = now, self._kept
        self._refreshes, self._flip_ratios, self._ious = 0, 0.0, 0.0
        return record

    def still_changing(self) -> list[float]:
        """Return the fraction of elements that still change after epoch 0, 1, …, up to the last finished epoch.

        This is the paper's last-change curve. It counts changes up to the last finished epoch, so the last fraction is
        zero, and the others grow as training continues. The first is the fraction of elements that have ever changed.
        """
        ends = torch.bincount(self._last_change.long(), minlength=self._epochs + 1)
        later = ends.sum() - ends.cumsum(0)
        return [count / self._mask.numel() for count in later.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and numbers; a run that resumes from it records the same values."""
        return {
            "shapes": {name: list(shape) for name, shape in self._shapes.items()},
            "mask": pack(self._mask),
            "epoch_mask": pack(self._epoch_mask),
            "moved": pack(self._moved),
            "last_change": self._last_change.cpu().clone(),
            "epochs": self._epochs,
            "refreshes": self._refreshes,
            "flip_ratios": self._flip_ratios,
            "ious": self._ious,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        mine = {name: list(shape) for name, shape in self._shapes.items()}
        if state["shapes"] != mine:
            differing = sorted(
                name for name in {*mine, *state["shapes"]} if mine.get(name) != state["shapes"].get(name)
            )
            raise ValueError(f"the state belongs to different masks; they differ in {', '.join(differing[:3])}.")
        # Another pruner may have the same masks in another order; the saved tensors have the saved order.
        self._shapes = {name: self._shapes[name] for name in state["shapes"]}
        shape, device = self._mask.shape, self._mask.device
        self._mask = unpack(state["mask"], shape, "mask").to(device)
        self._epoch_mask = unpack(state["epoch_mask"], shape, "epoch_mask").to(device)
        self._kept, self._epoch_kept = _count(self._mask), _count(self._epoch_mask)
        self._moved = unpack(state["moved"], shape, "moved").to(device)
        self._last_change = state["last_change"].to(device, copy=True)
        self._epochs, self._refreshes = state["epochs"], state["refreshes"]
        self._flip_ratios, self._ious = state["flip_ratios"], state["ious"]

    def _advance(self, now: Tensor) -> Change:
        changed, before = self._mask ^ now, self._kept
        self._moved |= changed
        self._mask, self._kept = now, _count(now)
        return _change(changed, before, self._kept)

    def _flatten(self, masks: Mapping[str, Tensor]) -> Tensor:
        """Return a copy (masks change in place) as one tensor (one large pass is faster than many small ones)."""
        if {name: mask.shape for name, mask in masks.items()} != self._shapes:
            raise ValueError(
                f"watching the masks {', '.join(self._shapes)}; got different names or shapes: {', '.join(masks)}."
            )
        for name, mask in masks.items():
            if mask.dtype is not torch.bool:
                raise TypeError(f"the mask of {name} must be boolean (True = kept), got {mask.dtype}.")
        device = masks[next(iter(self._shapes))].device
        return torch.cat([masks[name].reshape(-1).to(device) for name in self._shapes])


def _count(mask: Tensor) -> int:
    return int(torch.count_nonzero(mask))


def _change(changed: Tensor, before: int, after: int) -> Change:
    """Compute intersection and union from three counts: kept before, kept after, and changed."""
    flips, total = _count(changed), max(changed.numel(), 1)
    union = before + after + flips
    return Change(
        flips=flips,
        flip_ratio=flips / total,
        iou=(before + after - flips) / union if union else 1.0,
        sparsity=1 - after / total,
    )
