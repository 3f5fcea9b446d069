"""How many survive where: one pool for the whole model, or a count for every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from regrow.core.score import alive
from regrow.core.select import NotANumberError, prune_smallest

Scope = Literal["global", "layer", "er", "erk", "redistributed"]


@dataclass(frozen=True)
class Budget:
    """Decides how many units of each layer are pruned when the share `sparsity` of all of them is.

    "global" lets all layers compete, "layer" prunes `round(n·s)` of the n units of each. The others split the exact
    number of survivors of the whole model between the layers: "er" by the density (n_in + n_out) / (n_in n_out) of
    Mocanu et al. 2018, "erk" with the kernel's sides in both terms (Evci et al. 2020), "redistributed" anew for every
    mask by the sum of the layer's scores. `floor` units of a layer are never pruned.
    """

    scope: Scope = "global"
    floor: int = 0

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"scope must be one of {', '.join(map(repr, get_args(Scope)))}, got {self.scope!r}")
        if self.floor < 0:
            raise ValueError(f"floor must be at least 0 units per layer, got {self.floor}")

    def keep_top(
        self, scores: Mapping[str, Tensor], sparsity: float, shapes: Mapping[str, torch.Size] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the mask of each tensor of scores: those of least magnitude are pruned.

        `shapes` are those of the weights: a score may stand for several.
        """
        for pool, count in self._pools(scores, sparsity, shapes or {name: s.shape for name, s in scores.items()}):
            total = sum(scores[name].numel() for name in pool)
            spared = sum(min(self.floor, scores[name].numel()) for name in pool)
            if count > total - spared:
                raise ValueError(
                    f"sparsity {sparsity:g} prunes {count:,} of {total:,} units, but floor={self.floor} protects "
                    f"{spared:,} of them: lower the floor or the sparsity"
                )
            yield from zip(pool, self._prune(pool, [scores[name] for name in pool], count), strict=True)

    def _pools(
        self, scores: Mapping[str, Tensor], sparsity: float, shapes: Mapping[str, torch.Size]
    ) -> Iterator[tuple[list[str], int]]:
        names, sizes = list(scores), [score.numel() for score in scores.values()]
        if self.scope == "global":
            yield names, round(sum(sizes) * sparsity)
        elif self.scope == "layer":
            yield from (([name], round(size * sparsity)) for name, size in zip(names, sizes, strict=True))
        else:
            left = sum(sizes) - round(sum(sizes) * sparsity)
            shares = [self._share(scores[name], shapes[name]) for name in names]
            kept = allocate(left, shares, sizes)
            yield from (([name], size - keep) for name, size, keep in zip(names, sizes, kept, strict=True))

    def _share(self, score: Tensor, shape: torch.Size) -> float:
        if self.scope == "redistributed":
            return float(torch.linalg.vector_norm(score, 1, dtype=torch.float64))
        sides = shape if self.scope == "erk" else shape[:2]
        return score.numel() * sum(sides) / prod(sides)

    def _prune(self, names: list[str], scores: list[Tensor], count: int) -> Iterator[Tensor]:
        if not self.floor:
            yield from prune_named(names, scores, count)
            return
        tops = [
            next(prune_named([name], [score], max(score.numel() - self.floor, 0)))
            for name, score in zip(names, scores, strict=True)
        ]
        rest = [score[~top] for score, top in zip(scores, tops, strict=True)]
        for top, keep in zip(tops, prune_named(names, rest, count), strict=True):
            yield top.masked_scatter(~top, keep)


def allocate(total: int, shares: Sequence[float], caps: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `shares`, no part above its cap; what overflows goes to the others alike.

    Fractions go to the largest remainders, so that the parts are whole and sum to `total` exactly.

    >>> allocate(10, [3, 1, 1], [4, 9, 9])
    [4, 3, 3]
    """
    if total > sum(caps):
        raise ValueError(f"{total:,} units do not fit into the {sum(caps):,} free places")
    parts = [Fraction(cap) for cap in caps]
    open_ = set(range(len(caps)))
    full: set[int] = set(open_)
    while full:
        left = total - sum(cap for index, cap in enumerate(caps) if index not in open_)
        weights = {index: Fraction(shares[index]) for index in open_}
        sum_ = sum(weights.values())
        for index in open_:
            parts[index] = left * weights[index] / sum_ if sum_ else Fraction(left, len(open_))
        full = {index for index in open_ if parts[index] > caps[index]}
        parts = [Fraction(caps[index]) if index in full else part for index, part in enumerate(parts)]
        open_ -= full
    whole = [int(part) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda index: whole[index] - parts[index])
    for index in by_remainder[: total - sum(whole)]:
        whole[index] += 1
    return whole


def keep_largest(name: str, score: Tensor, among: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` elements of largest magnitude inside the mask `among`."""
    [keep] = prune_named([name], [alive(score, among)], score.numel() - count)
    return keep


def prune_named(names: Sequence[str], scores: Sequence[Tensor], count: int) -> Iterator[Tensor]:
    """Yield what `prune_smallest` does, with an error that names the tensor that has no order."""
    try:
        yield from prune_smallest(scores, count)
    except NotANumberError as error:
        raise ValueError(
            f"{names[error.index]} holds NaN, which has no place in an order of magnitudes: "
            "training has diverged (lower the learning rate, or go back to the last good checkpoint)"
        ) from None
