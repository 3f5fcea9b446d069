"""How many survive where: one pool for the whole model, or one per layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from regrow.core.select import NotANumberError, Reduce, prune_smallest

Scope = Literal["global", "layer"]


@dataclass(frozen=True)
class Budget:
    """Prunes exactly `round(n·s)` of the n units of every pool; `floor` units of a layer are never pruned."""

    scope: Scope = "global"
    floor: int = 0
    reduce: Reduce | None = None

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"scope must be 'global' or 'layer', got {self.scope!r}")
        if self.floor < 0:
            raise ValueError(f"floor must be at least 0 units per layer, got {self.floor}")

    def keep_top(self, scores: Mapping[str, Tensor], sparsity: float) -> Iterator[tuple[str, Tensor]]:
        """Yield the mask of each tensor of scores; in each pool the share `sparsity` of least magnitude is pruned."""
        names = list(scores)
        pools = [names] if self.scope == "global" else [[name] for name in names]
        for pool in pools:
            guarded = [self._guard(name, scores[name]) for name in pool]
            total = sum(score.numel() for score in guarded)
            count = round(total * sparsity)
            spared = sum(min(self.floor, score.numel()) for score in guarded)
            if count > total - spared:
                raise ValueError(
                    f"sparsity {sparsity:g} prunes {count:,} of {total:,} units, but floor={self.floor} protects "
                    f"{spared:,} of them: lower the floor or the sparsity"
                )
            try:
                yield from zip(pool, prune_smallest(guarded, count, reduce=self.reduce), strict=True)
            except NotANumberError as error:
                raise ValueError(
                    f"{pool[error.index]} holds NaN, which has no place in an order of magnitudes: "
                    "training has diverged (lower the learning rate, or go back to the last good checkpoint)"
                ) from None

    def _guard(self, name: str, score: Tensor) -> Tensor:
        if not self.floor:
            return score
        if self.floor >= score.numel():
            return torch.full_like(score, torch.inf)
        [top] = prune_smallest([score], score.numel() - self.floor)
        return score.masked_fill(top, torch.inf)
