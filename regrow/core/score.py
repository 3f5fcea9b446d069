"""How much a weight or a filter matters: the larger the score's magnitude, the longer it is kept."""

from __future__ import annotations

import torch
from torch import Tensor

from regrow.core.targets import Target


def magnitude(weight: Tensor) -> Tensor:
    """Score a weight by |w| (selection looks at magnitudes only, so the weight itself serves)."""
    return weight


def alive(score: Tensor, mask: Tensor) -> Tensor:
    """Rank everything in `mask`, zeros included, above everything outside it; the order within stays the same."""
    return torch.where(mask, torch.nextafter(score.abs(), score.new_tensor(torch.inf)), 0)


def filter_norm(target: Target, weight: Tensor) -> Tensor:
    """Score each output filter by its l2 norm (Appendix A.5)."""
    norms: Tensor = torch.linalg.vector_norm(weight.movedim(target.out_dim, 0).flatten(1), dim=1)
    return norms


def expand_filters(target: Target, keep: Tensor) -> Tensor:
    """Spread one decision per filter over the filter's weights."""
    shape = [1] * target.param.ndim
    shape[target.out_dim] = -1
    spread: Tensor = keep.view(shape).expand_as(target.param)
    return spread
