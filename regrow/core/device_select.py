"""Exact selection on accelerators: few launches and host syncs, whatever the number of tensors.

The masks are those of `regrow.core.select`, found by the same radix selection. All tensors of all groups are read
together: pieces of them are concatenated to a chunk of integers, and every operation runs on the whole chunk. Per-group
values are added with foreach operations on the pieces. The host learns the thresholds in one copy of a few numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.core.bits import bits, in_memory_order, is_dense
from regrow.core.distributed import ShardGroup
from regrow.core.select import NotANumberError, Threshold

_BINS = 1 << 16
_READ, _READ_GROUPS, _CUT = 0.4, 0.5, 0.25  # memory for a chunk, as a share of that of the tensors
_LEAST = 1 << 16  # elements of a chunk of small tensors

Group = tuple[Mapping[str, Tensor], int]
"""Tensors whose elements compete with each other, and how many of these elements are pruned."""


@dataclass(frozen=True)
class _Chunk:
    """Elements that are read together: pieces of tensors, and the number of each one's tensor and group."""

    pieces: list[Tensor]
    tensors: list[int]
    groups: list[int]

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return the bits of the pieces as one tensor, with room for the sign of differences."""
        wide = torch.int64 if dtype.itemsize == 8 else torch.int32
        flat = [piece if piece.dtype is dtype else piece.to(dtype) for piece in self.pieces]
        result = torch.empty(sum(map(len, flat)), dtype=wide, device=flat[0].device)
        return torch.cat([bits(piece) for piece in flat], out=result)

    def keys(self, dtype: torch.dtype) -> Tensor:
        """Return the keys of the pieces: their bits without the sign."""
        return self.read(dtype).bitwise_and_((1 << (8 * dtype.itemsize - 1)) - 1)

    def add_(self, values: Tensor, numbers: Tensor | Sequence[int], owners: list[int] | None = None) -> None:
        """Add to every value the number of its group, or of its owner; a tensor holds that of the only group."""
        if isinstance(numbers, Tensor):
            values.add_(numbers)
            return
        added = [numbers[owner] for owner in owners or self.groups]
        if len(set(added)) == 1:
            values.add_(added[0])
        else:
            torch._foreach_add_(list(values.split([len(piece) for piece in self.pieces])), added)


def find_thresholds(groups: Sequence[Group], shards: ShardGroup) -> list[Threshold | None]:
    """Return the threshold of each group, as `regrow.core.select.find_threshold` does for one."""
    wanted = [(scores, count) for scores, count in groups if count]
    if not wanted:
        return [None] * len(groups)
    found = iter(_radix(wanted, shards))
    return [next(found) if count else None for _, count in groups]


def _radix(groups: Sequence[Group], shards: ShardGroup) -> list[Threshold]:
    """Find the thresholds 16 bits at a time."""
    tensors = [score for scores, _ in groups for score in scores.values()]
    dtypes = [_dtype(scores) for scores, _ in groups]
    if len(set(dtypes)) > 1:
        return [threshold for group in groups for threshold in _radix([group], shards)]
    dtype, device, count = dtypes[0], tensors[0].device, len(groups)
    members = [list(scores.values()) for scores, _ in groups]
    chunks = list(_chunks(members, _size(members, dtype, _READ if count == 1 else _READ_GROUPS)))
    rank = torch.tensor([[count] for _, count in groups], device=device)
    prefix = torch.zeros_like(rank)
    ties = rank
    top = 8 * dtype.itemsize - 16
    for shift in range(top, -1, -16):
        known = None if shift == top else (1 << shift) - (prefix.view(-1) << (shift + 16))
        starts = known if known is None or count == 1 else known.tolist()
        histogram = shards.sum(_histogram(chunks, dtype, shift, starts, count, device))
        total = histogram.cumsum(1)
        digit = torch.searchsorted(total, rank)
        ties = histogram.gather(1, digit)
        rank = rank - total.gather(1, digit) + ties
        prefix = (prefix << 16) | digit
        del histogram, total  # before the next round, which needs as much memory
    mine = _contain_nan(tensors)
    prefixes, ranks, tied, here, nans = to_host(prefix, rank, ties, mine, shards.sum(mine))
    if any(nans):
        names = [name for scores, _ in groups for name in scores]
        found = [name for name, nan in zip(names, here, strict=True) if nan]
        raise NotANumberError(found[0] if found else "a shard of another process")
    return [Threshold(*each, dtype) for each in zip(prefixes, ranks, tied, strict=True)]


def _histogram(
    chunks: list[_Chunk],
    dtype: torch.dtype,
    shift: int,
    starts: Tensor | Sequence[int] | None,
    count: int,
    device: torch.device,
) -> Tensor:
    """Count 16 bits of the keys of each group; after the first round only of keys that continue the prefix.

    `starts` are added to the keys, so that those with the prefix begin at bin 1; the others are counted in the first
    and in the last bin.
    """
    bins = _BINS if starts is None else _BINS + 2
    size = sum(len(piece) for chunk in chunks for piece in chunk.pieces)
    histogram = torch.zeros(count * bins, dtype=torch.int32 if size < 1 << 31 else torch.int64, device=device)
    one = torch.ones(1, dtype=histogram.dtype, device=device)
    for chunk in chunks:
        if starts is None:
            digits = chunk.read(dtype)
            digits = digits.bitwise_right_shift_(shift) if shift else digits
            offset = _BINS // 2  # the sign is the leading bit: negative elements are in the first half
        else:
            digits = chunk.keys(dtype)
            chunk.add_(digits, starts)
            digits = digits.bitwise_right_shift_(shift) if shift else digits
            digits.clamp_(0, _BINS + 1)
            offset = 0
        if offset or count > 1:
            chunk.add_(digits, [offset + group * bins for group in range(count)])
        histogram.index_add_(0, digits, one.expand(len(digits)))
        del digits  # before the next chunk is read
    if starts is None:
        return histogram.view(count, 2, _BINS // 2).sum(1)
    return histogram.view(count, bins)[:, 1:-1]


def masks(groups: Sequence[Group], thresholds: Sequence[Threshold | None], shards: ShardGroup) -> list[list[Tensor]]:
    """Return the masks of each group's tensors, as `regrow.core.select.cut` does for one group."""
    found = [
        [torch.ones_like(score, dtype=torch.bool) for score in scores.values()] if threshold is None else []
        for (scores, _), threshold in zip(groups, thresholds, strict=True)
    ]
    by_dtype: dict[torch.dtype, list[int]] = {}
    for index, threshold in enumerate(thresholds):
        if threshold is not None:
            by_dtype.setdefault(threshold.dtype, []).append(index)
    for indices in by_dtype.values():
        scores = [list(groups[index][0].values()) for index in indices]
        wanted = [threshold for index in indices if (threshold := thresholds[index]) is not None]
        flat = _cut(scores, wanted, shards)
        for index in indices:
            found[index] += itertools.islice(flat, len(groups[index][0]))
    return found


def _cut(scores: list[list[Tensor]], thresholds: list[Threshold], shards: ShardGroup) -> Iterator[Tensor]:
    """Yield the masks of all tensors, which are parts of one tensor."""
    dtype = thresholds[0].dtype
    partly = any(threshold.ties_pruned < threshold.ties for threshold in thresholds)
    whole = [score for group in scores for score in group]
    keep = torch.empty(sum(score.numel() for score in whole), dtype=torch.bool, device=whole[0].device)
    limits = _limits(scores, thresholds, shards) if partly else []
    before, start = None, 0
    for chunk in _chunks(scores, _size(scores, dtype, _CUT), logical=partly):
        keys = chunk.keys(dtype)
        part = keep[start : start + len(keys)]
        start += len(keys)
        chunk.add_(keys, [-threshold.key for threshold in thresholds])
        if partly:
            tied = torch.eq(keys, 0, out=part)
            place = tied.cumsum(0, dtype=keys.dtype)  # among the ties of all tensors
            place = place if before is None else place.add_(before)
            before = place[-1].clone()
            chunk.add_(place, [-limit for limit in limits], chunk.tensors)
            torch.where(tied, place, keys, out=keys)
            del place, tied  # before the next chunk is read
        torch.gt(keys, 0, out=part)
        del keys
    for score, flat in zip(whole, keep.split([score.numel() for score in whole]), strict=True):
        if partly or score.is_contiguous() or not is_dense(score):
            yield flat.view(score.shape)
        else:
            yield flat.as_strided(score.shape, score.stride(), flat.storage_offset())


def count_changes(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[Tensor]:
    """Return numbers that add up to how many elements of the masks differ."""
    same = [a.stride() == b.stride() and is_dense(a) for a, b in zip(before, after, strict=True)]
    old, new = (
        [_flat(mask, logical=not alike) for mask, alike in zip(masks, same, strict=True)] for masks in (before, after)
    )
    size = max(-(-sum(map(len, old)) // 2), _LEAST)
    return [
        torch.cat(mine.pieces).logical_xor_(torch.cat(other.pieces)).sum()
        for mine, other in zip(_chunks([old], size), _chunks([new], size), strict=True)
    ]


def _limits(scores: list[list[Tensor]], thresholds: list[Threshold], shards: ShardGroup) -> list[int]:
    """Return for each tensor the place, among the ties of all tensors, after which its ties are kept."""
    limits, start = [], 0
    for group, threshold in zip(scores, thresholds, strict=True):
        limits += [start + threshold.ties_pruned] * len(group)
        start += threshold.ties
    if not shards.sharded:
        return limits
    keys = [threshold.key for group, threshold in zip(scores, thresholds, strict=True) for _ in group]
    dtype = thresholds[0].dtype
    flat = [_Chunk([_flat(score)], [0], [0]).keys(dtype) for group in scores for score in group]
    ties = torch.stack([torch.count_nonzero(each == key) for each, key in zip(flat, keys, strict=True)]).cpu()
    # Places count the ties of this process only; limits those of all processes.
    ahead = shards.sum_before(ties) - (ties.cumsum(0) - ties)
    return [limit - more for limit, more in zip(limits, ahead.tolist(), strict=True)]


def _size(scores: list[list[Tensor]], dtype: torch.dtype, share: float) -> int:
    """Return the number of elements of a chunk that takes a `share` of the memory of all tensors."""
    stored = sum(score.nbytes for group in scores for score in group)
    count = sum(score.numel() for group in scores for score in group)
    chunks = max(math.ceil(count * max(dtype.itemsize, 4) / (stored * share)), 1) if stored else 1
    return max(-(-count // chunks), _LEAST)


def _chunks(scores: list[list[Tensor]], size: int, *, logical: bool = False) -> Iterator[_Chunk]:
    """Yield the elements of all tensors in chunks, in memory order or in logical (row-major) order."""
    chunk, room = _Chunk([], [], []), size
    for index, (group, score) in enumerate((group, score) for group, part in enumerate(scores) for score in part):
        rest = _flat(score, logical=logical)
        while len(rest):
            piece, rest = rest[:room], rest[room:]
            chunk.pieces.append(piece)
            chunk.tensors.append(index)
            chunk.groups.append(group)
            room -= len(piece)
            if not room:
                yield chunk
                chunk, room = _Chunk([], [], []), size
    if chunk.pieces:
        yield chunk


def _flat(score: Tensor, *, logical: bool = False) -> Tensor:
    if logical or not is_dense(score):
        return score.detach().reshape(-1)
    return in_memory_order(score)


def _dtype(scores: Mapping[str, Tensor]) -> torch.dtype:
    return functools.reduce(torch.promote_types, [score.dtype for score in scores.values()])


def _contain_nan(tensors: list[Tensor]) -> Tensor:
    """Return for each tensor whether it contains NaN, as a number."""
    return torch.stack(torch._foreach_norm(tensors, 1)).isnan().to(torch.int64)


def to_host(*numbers: Tensor) -> list[list[int]]:
    """Return several tensors as lists, in one copy."""
    flat = [each.reshape(-1).to(torch.int64) for each in numbers]
    listed = torch.cat(flat).tolist()
    starts = [sum(map(len, flat[:index])) for index in range(len(flat) + 1)]
    return [listed[start:end] for start, end in itertools.pairwise(starts)]
