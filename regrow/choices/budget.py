"""Budgets beyond one pool or equal shares: Erdos-Renyi densities, redistribution, a floor under every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import fsum, prod
from typing import Literal, get_args

import torch
from torch import Tensor

from regrow.checks import check_count
from regrow.core.budget import Budget, Pool, compete
from regrow.host.shards import ALONE, Shards

Scope = Literal["global", "layer", "er", "erk", "redistributed"]


@dataclass(frozen=True)
class Allotment(Budget):
    """A budget that can also split the exact number of survivors of the whole model between its layers.

    "er" splits by the density (n_in + n_out) / (n_in n_out) of Mocanu et al. 2018, "erk" with the kernel's sides in
    both terms (Evci et al. 2020), "redistributed" anew for every mask by the sum of the layer's scores. `floor` units
    of a layer are never pruned.
    """

    scope: Scope = "global"
    floor: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("floor", self.floor, "units per layer", least=0)

    @staticmethod
    def scopes() -> tuple[str, ...]:
        """Return all scopes."""
        return get_args(Scope)

    def keep_top(
        self,
        scores: Mapping[str, Tensor],
        sparsity: float,
        shapes: Mapping[str, torch.Size] | None = None,
        shards: Shards = ALONE,
        among: Mapping[str, Tensor] | None = None,
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the mask of each tensor of scores: those of least magnitude are pruned, but not below the floor.

        Nothing outside the masks `among` is kept, as long as they have that many units.
        """
        shapes = shapes or {name: score.shape for name, score in scores.items()}
        places = None if among is None else shards.counts(among[name] for name in scores)
        if among is not None:
            scores = all_alive(scores, among, shards)
        pools = self.pools(scores, sparsity, shapes, shards, places)
        if not self.floor:
            yield from compete(scores, pools, shards)
            return
        sizes = dict(zip(scores, shards.sizes(scores.values()), strict=True))
        for names, count in pools:
            self._check_room([sizes[name] for name in names], count, sparsity)
        safe = dict(compete(scores, [([name], max(size - self.floor, 0)) for name, size in sizes.items()], shards))
        others = {name: score[~safe[name]] for name, score in scores.items()}
        for name, keep in compete(others, pools, shards):
            yield name, safe[name].masked_scatter(~safe[name], keep)

    def pools(
        self,
        scores: Mapping[str, Tensor],
        sparsity: float,
        shapes: Mapping[str, torch.Size],
        shards: Shards,
        places: Sequence[int] | None = None,
    ) -> list[Pool]:
        """Return who competes with whom; no layer keeps more units than it has `places`, by default one for each."""
        if self.scope in Budget.scopes():
            return super().pools(scores, sparsity, shapes, shards)
        sizes = shards.sizes(scores.values())
        if self.scope == "redistributed":
            shares = [row_sum(score.abs(), shards) for score in scores.values()]
        else:
            shares = [size * self._density(shapes[name]) for name, size in zip(scores, sizes, strict=True)]
        kept = allocate(sum(sizes) - round(sum(sizes) * sparsity), shares, sizes if places is None else places)
        return [([name], size - keep) for name, size, keep in zip(scores, sizes, kept, strict=True)]

    def _density(self, shape: torch.Size) -> float:
        sides = shape if self.scope == "erk" else shape[:2]
        return sum(sides) / prod(sides)

    def _check_room(self, sizes: list[int], count: int, sparsity: float) -> None:
        total = sum(sizes)
        spared = sum(min(self.floor, size) for size in sizes)
        if count > total - spared:
            raise ValueError(
                f"sparsity {sparsity:g} prunes {count:,} of {total:,} units, but floor={self.floor} protects "
                f"{spared:,} of them: lower the floor or the sparsity"
            )


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


def alive(score: Tensor, mask: Tensor) -> Tensor:
    """Rank everything in `mask`, zeros included, above everything outside it; the order within stays the same."""
    return torch.where(mask, torch.nextafter(score.abs(), score.new_tensor(torch.inf)), 0)


def all_alive(scores: Mapping[str, Tensor], masks: Mapping[str, Tensor], shards: Shards) -> Mapping[str, Tensor]:
    """Do what `alive` does for all scores; without a copy if nothing is zero but what is outside the masks."""
    if any(shards.counts((score != 0) != masks[name] for name, score in scores.items())):
        return {name: alive(score, masks[name]) for name, score in scores.items()}
    return scores


def prune_named(name: str, score: Tensor, count: int, shards: Shards = ALONE) -> Tensor:
    """Return a mask without the `count` elements of least magnitude."""
    [(_, keep)] = compete({name: score}, [([name], count)], shards)
    return keep


def keep_largest(name: str, score: Tensor, among: Tensor, count: int, shards: Shards = ALONE) -> Tensor:
    """Return a mask of the `count` elements of largest magnitude inside the mask `among`."""
    [size] = shards.sizes([score])
    return prune_named(name, alive(score, among), size - count, shards)


def row_sum(tensor: Tensor, shards: Shards) -> float:
    """Return the sum of all elements, rounded in the same way however the rows are spread over processes."""
    rows = tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None]
    return fsum(shards.rows(rows.sum(1, dtype=torch.float64)).tolist())
