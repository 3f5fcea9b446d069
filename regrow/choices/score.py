"""How much a filter matters: scores of the rows of a matrix, one for each filter (a weight is its own score)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Criterion = Literal["l2", "l1", "rms", "fpgm", "bn"]
"""How filters are ranked; "bn" is the scale of the batch norm that follows (Liu et al. 2017)."""


def l2(rows: Tensor) -> Tensor:
    """Score a filter by its l2 norm (Appendix A.5)."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


def l1(rows: Tensor) -> Tensor:
    """Score a filter by the sum of its magnitudes (Li et al. 2017); sums the scores of SNIP."""
    return rows.abs().sum(1)


def rms(rows: Tensor) -> Tensor:
    """Score a filter by the root mean square of its weights, which is fair between layers of different fan-in."""
    return rows.square().mean(1).sqrt()


def fpgm(rows: Tensor) -> Tensor:
    """Score a filter by its distances to the others: those near the geometric median go (He et al. 2019)."""
    return torch.cdist(rows.float(), rows.float()).sum(1)


CRITERIA: dict[str, Callable[[Tensor], Tensor]] = {"l2": l2, "l1": l1, "rms": rms, "fpgm": fpgm}
