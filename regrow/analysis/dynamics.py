"""How masks move during training: flips, overlap, when each element settles (Sec. 6 and Appendix of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regrow.host.layout import pack, unpack


@dataclass(frozen=True)
class Change:
    """What happened between two consecutive masks, over all targets together."""

    flips: int
    """Elements that differ."""
    flip_ratio: float
    """Their share of all elements."""
    iou: float
    """Intersection over union of what the two masks keep; 1 where neither keeps anything."""
    sparsity: float
    """The share of elements that the later mask prunes."""


@dataclass(frozen=True)
class Epoch:
    """What happened in one epoch."""

    epoch: int
    """Counted from 1."""
    change: Change
    """From the end of the epoch before (or the masks at the start) to the end of this one."""
    refreshes: int
    """How often masks were observed in between."""
    refresh_flip_ratio: float
    """The mean flip ratio between consecutive observations; 0 where there were none."""
    refresh_iou: float
    """The mean overlap between consecutive observations; 1 where there were none."""
    layers: Mapping[str, float]
    """The sparsity of each target at the end."""


class Dynamics:
    """Watches masks from the outside, with five bytes per element and a few passes over them per observation.

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
            raise ValueError("there are no masks to watch: pass the pruner's masks, {parameter name: bool tensor}.")
        self._shapes = {name: mask.shape for name, mask in masks.items()}
        self._mask = self._epoch_mask = self._flatten(masks)
        self._kept = self._epoch_kept = _count(self._mask)
        self._moved = torch.zeros_like(self._mask)
        self._last_change = torch.zeros(self._mask.shape, dtype=torch.int16, device=self._mask.device)
        self._epochs = self._refreshes = 0
        self._flip_ratios = self._ious = 0.0

    def observe(self, masks: Mapping[str, Tensor]) -> Change:
        """Compare the masks with those observed before; call it whenever they were made anew."""
        change = self._advance(self._flatten(masks))
        self._refreshes += 1
        self._flip_ratios += change.flip_ratio
        self._ious += change.iou
        return change

    def epoch_end(self, masks: Mapping[str, Tensor]) -> Epoch:
        """Close an epoch; changes that no observation saw belong to it too."""
        now = self._flatten(masks)
        self._advance(now)
        self._epochs += 1
        # Past 32,767 epochs all changes count as one late epoch.
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
        """Return the share of elements that still change after epoch 0, 1, …, up to the last one that has ended.

        This is the paper's last-change curve: it looks back from the present, so the shares grow while training
        goes on, and the last is zero. The first is the share that has changed at all.
        """
        ends = torch.bincount(self._last_change.long(), minlength=self._epochs + 1)
        later = ends.sum() - ends.cumsum(0)
        return [count / self._mask.numel() for count in later.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs to record the same, as tensors and numbers."""
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
        """Continue where `state_dict` was taken."""
        mine = {name: list(shape) for name, shape in self._shapes.items()}
        if state["shapes"] != mine:
            differing = sorted(
                name for name in {*mine, *state["shapes"]} if mine.get(name) != state["shapes"].get(name)
            )
            raise ValueError(f"the state was taken of other masks; they differ in {', '.join(differing[:3])}.")
        # Another pruner may have the same masks in another order; all that is taken over lies in the saved one.
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
        """A copy, because masks change in place, and in one piece, because many small passes cost more than one."""
        if {name: mask.shape for name, mask in masks.items()} != self._shapes:
            raise ValueError(
                f"watching the masks {', '.join(self._shapes)}; got other names or shapes: {', '.join(masks)}."
            )
        for name, mask in masks.items():
            if mask.dtype is not torch.bool:
                raise TypeError(f"the mask of {name} must be boolean (True = kept), got {mask.dtype}.")
        device = masks[next(iter(self._shapes))].device
        return torch.cat([masks[name].reshape(-1).to(device) for name in self._shapes])


def _count(mask: Tensor) -> int:
    return int(torch.count_nonzero(mask))


def _change(changed: Tensor, before: int, after: int) -> Change:
    """Intersection and union follow from three counts: kept before, kept after, and changed."""
    flips, total = _count(changed), max(changed.numel(), 1)
    union = before + after + flips
    return Change(
        flips=flips,
        flip_ratio=flips / total,
        iou=(before + after - flips) / union if union else 1.0,
        sparsity=1 - after / total,
    )
