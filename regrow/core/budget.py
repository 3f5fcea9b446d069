"""How many survive where: one pool for the whole model, or one per layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

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
        for pool in [names] if self.scope == "global" else [[name] for name in names]:
            total = sum(scores[name].numel() for name in pool)
            count = round(total * sparsity)
            spared = sum(min(self.floor, scores[name].numel()) for name in pool)
            if count > total - spared:
                raise ValueError(
                    f"sparsity {sparsity:g} prunes {count:,} of {total:,} units, but floor={self.floor} protects "
                    f"{spared:,} of them: lower the floor or the sparsity"
                )
            try:
                yield from zip(pool, self._prune([scores[name] for name in pool], count), strict=True)
            except NotANumberError as error:
                raise ValueError(
                    f"{pool[error.index]} holds NaN, which has no place in an order of magnitudes: "
                    "training has diverged (lower the learning rate, or go back to the last good checkpoint)"
                ) from None

    def _prune(self, scores: list[Tensor], count: int) -> Iterator[Tensor]:
        if not self.floor:
            yield from prune_smallest(scores, count, reduce=self.reduce)
            return
        tops = [next(prune_smallest([score], max(score.numel() - self.floor, 0))) for score in scores]
        rest = [score[~top] for score, top in zip(scores, tops, strict=True)]
        for top, keep in zip(tops, prune_smallest(rest, count, reduce=self.reduce), strict=True):
            yield top.masked_scatter(~top, keep)
