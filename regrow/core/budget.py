"""How many survive where: one pool for the whole model, or a count for every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.core.select import cut, find_threshold
from regrow.host.shards import ALONE, Shards

Pool = tuple[list[str], int]
"""Names of tensors that compete, and how many of their units go."""


@dataclass(frozen=True)
class Budget:
    """Decides how many units of each layer are pruned when the share `sparsity` of all of them is.

    "global" lets all layers compete, "layer" prunes `round(n·s)` of the n units of each.
    """

    scope: str = "global"

    def __post_init__(self) -> None:
        if self.scope not in self.scopes():
            raise ValueError(f"scope must be one of {', '.join(map(repr, self.scopes()))}, got {self.scope!r}")

    @staticmethod
    def scopes() -> tuple[str, ...]:
        """Return the scopes that this kind of budget knows."""
        return ("global", "layer")

    def keep_top(
        self,
        scores: Mapping[str, Tensor],
        sparsity: float,
        shapes: Mapping[str, torch.Size] | None = None,
        shards: Shards = ALONE,
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the mask of each tensor of scores: those of least magnitude are pruned.

        `shapes` are those of the weights: a score may stand for several. `shards` are the processes that hold them.
        """
        shapes = shapes or {name: score.shape for name, score in scores.items()}
        return compete(scores, self.pools(scores, sparsity, shapes, shards), shards)

    def pools(
        self, scores: Mapping[str, Tensor], sparsity: float, shapes: Mapping[str, torch.Size], shards: Shards
    ) -> list[Pool]:
        """Return who competes with whom, and for how many places."""
        sizes = dict(zip(scores, shards.sizes(scores.values()), strict=True))
        if self.scope == "global":
            return [(list(sizes), round(sum(sizes.values()) * sparsity))]
        return [([name], round(size * sparsity)) for name, size in sizes.items()]


def compete(scores: Mapping[str, Tensor], pools: list[Pool], shards: Shards = ALONE) -> Iterator[tuple[str, Tensor]]:
    """Yield the mask of each tensor: of every pool exactly as many elements go as it says, those of least magnitude."""
    contenders = [{name: scores[name] for name in names} for names, _ in pools]
    # All thresholds before the first mask: a NaN in the last layer must not leave the first ones changed.
    thresholds = [find_threshold(pool, count, shards) for pool, (_, count) in zip(contenders, pools, strict=True)]
    for pool, threshold in zip(contenders, thresholds, strict=True):
        yield from zip(pool, cut(pool.values(), threshold, shards), strict=True)
