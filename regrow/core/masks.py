"""Masks by parameter name: what is kept (True) and what is pruned (False)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


class Masks(Mapping[str, Tensor]):
    """A validated mapping from parameter names to boolean tensors, True where a weight is kept.

    >>> Masks({"fc.weight": torch.tensor([[True, False]])}).sparsity
    0.5
    """

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        for name, mask in masks.items():
            if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
                kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
                raise TypeError(f"the mask of {name} must be a boolean tensor (True = kept), got {kind}")
        self._masks = dict(masks)

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __repr__(self) -> str:
        return f"Masks({len(self)} tensors, {self.kept:,} of {self.total:,} kept)"

    @property
    def total(self) -> int:
        """How many weights there are."""
        return sum(mask.numel() for mask in self.values())

    @property
    def kept(self) -> int:
        """How many weights are kept."""
        return sum(int(torch.count_nonzero(mask)) for mask in self.values())

    @property
    def sparsity(self) -> float:
        """The share of weights that are pruned."""
        return 1 - self.kept / self.total if self.total else 0.0

    def clone(self) -> Masks:
        """Return masks that no later update changes."""
        return Masks({name: mask.clone() for name, mask in self.items()})
