"""How many units each layer keeps: one global count, one per layer, Erdos-Renyi, redistributed; a floor per layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import fsum, prod
from typing import Literal, get_args

import torch
from torch import Tensor

from regrow.checks import check_count
from regrow.core import device_select
from regrow.core.bits import on_one_accelerator
from regrow.core.distributed import SINGLE_PROCESS, ShardGroup
from regrow.core.select import cut, find_threshold

Scope = Literal["global", "layer", "er", "erk", "redistributed"]

PruneGroup = tuple[list[str], int]
"""Names of tensors whose units compete with each other, and how many of these units are pruned."""

Parts = Sequence[tuple[Sequence[str], float]]
"""Names of tensors that share a budget, and the fraction of their units that is pruned."""


@dataclass(frozen=True)
class Budget:
    """Decides how many units of each layer are pruned when a fraction `sparsity` of all units is.

    * "global": all layers compete.
    * "layer": `round(n·s)` of the n units of each layer.
    * "er": in proportion to the density (n_in + n_out) / (n_in n_out) (Mocanu et al. 2018).
    * "erk": the same with the kernel's sides in both terms (Evci et al. 2020).
    * "redistributed": at every mask update, in proportion to the sum of the layer's scores.

    `floor` units of each layer are never pruned. The total is exact in all cases but "layer", which rounds per layer.
    """

    scope: Scope = "global"
    floor: int = 0

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"scope must be one of {', '.join(map(repr, get_args(Scope)))}, got {self.scope!r}")
        check_count("floor", self.floor, "units per layer", least=0)

    def keep_top(
        self,
        scores: Mapping[str, Tensor],
        sparsity: float | Parts,
        shapes: Mapping[str, torch.Size] | None = None,
        shards: ShardGroup = SINGLE_PROCESS,
        among: Mapping[str, Tensor] | None = None,
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield a mask for each tensor of scores: the units of least magnitude are pruned, down to the floor.

        `sparsity` is one fraction for all, or one for each of several parts, each with its own budget. `shapes`
        are those of the weights, because a unit can have several weights. Units outside the masks `among` are kept
        only if there are not enough units inside.
        """
        shapes = shapes or {name: score.shape for name, score in scores.items()}
        sizes = dict(zip(scores, shards.sizes(scores.values()), strict=True))
        caps = sizes
        if among is not None:
            caps = dict(zip(scores, shards.counts(among[name] for name in scores), strict=True))
            scores = rank_all_inside_first(scores, among, shards)
        groups: list[PruneGroup] = []
        for names, fraction in sparsity if isinstance(sparsity, Sequence) else [(list(scores), sparsity)]:
            part = self._groups({name: scores[name] for name in names}, fraction, shapes, shards, sizes, caps)
            for members, count in part:
                self._check_floor([sizes[name] for name in members], count, fraction)
            groups += part
        if not self.floor:
            yield from prune_groups(scores, groups, shards)
            return
        protected = [([name], max(size - self.floor, 0)) for name, size in sizes.items()]
        safe = dict(prune_groups(scores, protected, shards))
        others = {name: score[~safe[name]] for name, score in scores.items()}
        for name, keep in prune_groups(others, groups, shards):
            yield name, safe[name].masked_scatter(~safe[name], keep)

    def _groups(
        self,
        scores: Mapping[str, Tensor],
        sparsity: float,
        shapes: Mapping[str, torch.Size],
        shards: ShardGroup,
        sizes: Mapping[str, int],
        caps: Mapping[str, int],
    ) -> list[PruneGroup]:
        """Return which tensors compete, and how many units are pruned; no layer keeps more units than its cap."""
        total = sum(sizes[name] for name in scores)
        if self.scope == "global":
            return [(list(scores), round(total * sparsity))]
        if self.scope == "layer":
            return [([name], round(sizes[name] * sparsity)) for name in scores]
        if self.scope == "redistributed":
            parts = [sum_by_rows(score.abs(), shards) for score in scores.values()]
        else:
            parts = [sizes[name] * self._density(shapes[name]) for name in scores]
        kept = split_exactly(total - round(total * sparsity), parts, [caps[name] for name in scores])
        return [([name], sizes[name] - keep) for name, keep in zip(scores, kept, strict=True)]

    def _density(self, shape: torch.Size) -> float:
        sides = shape if self.scope == "erk" else shape[:2]
        return sum(sides) / prod(sides)

    def _check_floor(self, sizes: list[int], count: int, sparsity: float) -> None:
        total = sum(sizes)
        protected = sum(min(self.floor, size) for size in sizes)
        if self.floor and count > total - protected:
            raise ValueError(
                f"sparsity {sparsity:g} prunes {count:,} of {total:,} units, but floor={self.floor} protects "
                f"{protected:,} of them: lower the floor or the sparsity"
            )


def prune_groups(
    scores: Mapping[str, Tensor], groups: list[PruneGroup], shards: ShardGroup = SINGLE_PROCESS
) -> Iterator[tuple[str, Tensor]]:
    """Yield a mask for each tensor: every group loses exactly its number of elements, those of least magnitude."""
    if on_one_accelerator(scores.values()):
        yield from device_select.prune_groups(scores, groups, shards).items()
        return
    members = [{name: scores[name] for name in names} for names, _ in groups]
    # All thresholds before the first mask: a NaN in the last layer must not leave the first layers changed.
    thresholds = [find_threshold(group, count, shards) for group, (_, count) in zip(members, groups, strict=True)]
    for group, threshold in zip(members, thresholds, strict=True):
        yield from zip(group, cut(group.values(), threshold, shards), strict=True)


def prune_count(name: str, score: Tensor, count: int, shards: ShardGroup = SINGLE_PROCESS) -> Tensor:
    """Return a mask that prunes the `count` elements of least magnitude."""
    [(_, keep)] = prune_groups({name: score}, [([name], count)], shards)
    return keep


def keep_largest(name: str, score: Tensor, among: Tensor, count: int, shards: ShardGroup = SINGLE_PROCESS) -> Tensor:
    """Return a mask of the `count` elements of largest magnitude inside the mask `among`."""
    [size] = shards.sizes([score])
    return prune_count(name, rank_inside_first(score, among), size - count, shards)


def rank_inside_first(score: Tensor, mask: Tensor) -> Tensor:
    """Return scores that rank all elements inside `mask`, zeros included, above all outside; their order stays."""
    return torch.where(mask, torch.nextafter(score.abs(), score.new_tensor(torch.inf)), 0)


def rank_all_inside_first(
    scores: Mapping[str, Tensor], masks: Mapping[str, Tensor], shards: ShardGroup
) -> Mapping[str, Tensor]:
    """Apply `rank_inside_first` to all scores; without a copy if the zeros are exactly the elements outside."""
    if any(shards.counts((score != 0) != masks[name] for name, score in scores.items())):
        return {name: rank_inside_first(score, masks[name]) for name, score in scores.items()}
    return scores


def split_exactly(total: int, weights: Sequence[float], caps: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights`, no part above its cap; the excess is split among the other parts.

    Fractions go to the largest remainders, so that the parts are whole numbers and sum to `total` exactly.

    >>> split_exactly(10, [3, 1, 1], [4, 9, 9])
    [4, 3, 3]
    """
    if total > sum(caps):
        raise ValueError(f"{total:,} units do not fit into the {sum(caps):,} free places")
    parts = [Fraction(cap) for cap in caps]
    open_ = set(range(len(caps)))
    full: set[int] = set(open_)
    while full:
        left = total - sum(cap for index, cap in enumerate(caps) if index not in open_)
        exact = {index: Fraction(weights[index]) for index in open_}
        sum_ = sum(exact.values())
        for index in open_:
            parts[index] = left * exact[index] / sum_ if sum_ else Fraction(left, len(open_))
        full = {index for index in open_ if parts[index] > caps[index]}
        parts = [Fraction(caps[index]) if index in full else part for index, part in enumerate(parts)]
        open_ -= full
    whole = [int(part) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda index: whole[index] - parts[index])
    for index in by_remainder[: total - sum(whole)]:
        whole[index] += 1
    return whole


def sum_by_rows(tensor: Tensor, shards: ShardGroup) -> float:
    """Return the sum of all elements, rounded in the same way for every sharding of the rows."""
    rows = tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None]
    return fsum(shards.all_rows(rows.sum(1, dtype=torch.float64)).tolist())
