"""How many survive where: one pool for the whole model, or a count for every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.core.select import NotANumberError, Threshold, cut, find_threshold
from regrow.host.shards import Shards

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
        shards: Shards = Shards(),  # noqa: B008 - it has no state
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the mask of each tensor of scores: those of least magnitude are pruned.

        `shapes` are those of the weights: a score may stand for several. `shards` are the processes that hold them.
        """
        pools = self.pools(scores, sparsity, shapes or {name: score.shape for name, score in scores.items()}, shards)
        # All thresholds before the first mask: a NaN in the last layer must not leave the first ones changed.
        thresholds = [find_named([(name, scores[name]) for name in names], count, shards) for names, count in pools]
        for (names, _), threshold in zip(pools, thresholds, strict=True):
            yield from zip(names, cut_over([scores[name] for name in names], threshold, shards), strict=True)

    def pools(
        self, scores: Mapping[str, Tensor], sparsity: float, shapes: Mapping[str, torch.Size], shards: Shards
    ) -> list[Pool]:
        """Return who competes with whom, and for how many places."""
        sizes = dict(zip(scores, shards.sizes(scores.values()), strict=True))
        if self.scope == "global":
            return [(list(sizes), round(sum(sizes.values()) * sparsity))]
        return [([name], round(size * sparsity)) for name, size in sizes.items()]


def find_named(scores: Sequence[tuple[str, Tensor]], count: int, shards: Shards) -> Threshold | None:
    """Return what `find_threshold` does, with an error that names the tensor that has no order."""
    try:
        return find_threshold([score for _, score in scores], count, reduce=shards.sum if shards.spread else None)
    except NotANumberError as error:
        where = "a shard of another process" if error.index is None else scores[error.index][0]
        raise ValueError(
            f"{where} holds NaN, which has no place in an order of magnitudes: "
            "training has diverged (lower the learning rate, or go back to the last good checkpoint)"
        ) from None


def cut_over(scores: Sequence[Tensor], threshold: Threshold | None, shards: Shards) -> Iterator[Tensor]:
    """Yield what `cut` does for this process's part of the scores."""
    return cut(scores, threshold, ties_before=shards.before if shards.spread else None)


def alive(score: Tensor, mask: Tensor) -> Tensor:
    """Rank everything in `mask`, zeros included, above everything outside it; the order within stays the same."""
    return torch.where(mask, torch.nextafter(score.abs(), score.new_tensor(torch.inf)), 0)
