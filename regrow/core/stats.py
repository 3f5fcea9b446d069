"""What a pruner can tell about itself after a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.core.weights import Weight
from regrow.host.shards import Shards


@dataclass(frozen=True)
class Stats:
    """A pruner's state in numbers."""

    step: int
    requested: float
    """The schedule's sparsity when the mask was made, in units (weights or filters)."""
    sparsity: float
    """The share of targeted weights that are zeroed."""
    delta: float
    """The quality of the pruning δ_t = ‖w − ŵ‖² / ‖w‖² (Eq. 2)."""
    flips: int
    """Mask elements that changed when the mask was last made."""
    layers: Mapping[str, float]
    """The sparsity of each target."""
    collapsed: tuple[str, ...]
    """Targets of which nothing is left."""


def quality(weights: Iterable[Weight], shards: Shards) -> float:
    """Return δ_t."""
    pairs = [(_square(weight.error), _square(weight.source)) for weight in weights]
    sums = [sum(squares) for squares in zip(*pairs, strict=True)]
    error, whole = shards.sum(torch.tensor(sums, dtype=torch.float64, device="cpu")).tolist()
    return error / whole if whole else 0.0


def _square(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2
