"""Exact selection on accelerators: few launches and host syncs, whatever the number of tensors.

The masks are those of `regrow.core.select`, found by the same radix selection. All tensors of all groups are read
together: their rows are copied to a chunk of integers, every operation runs on the whole chunk, and numbers that differ
between groups are added by foreach operations. Chunks are as large as half of the tensors' memory permits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from regrow.core.bits import bits, largest_key
from regrow.core.distributed import ShardGroup
from regrow.core.select import NotANumberError

_DIGIT = 16
_COPIES = 16  # of the histogram of one group: most keys fall into two of its bins, where atomic additions collide
_MEMORY_FRACTION = 0.49  # of the tensors' memory, for everything that is needed at the same time
_MOST_CHUNKS = 5  # few launches are worth more memory: masks of 16-bit tensors alone need half of their memory
_LEAST = 1 << 20  # elements: chunks of 4 MB are small enough on any accelerator
_ROW = 1024  # elements among which a tie is looked for at once


def prune_groups(
    scores: Mapping[str, Tensor], groups: Sequence[tuple[list[str], int]], shards: ShardGroup
) -> dict[str, Tensor]:
    """Return a mask for each tensor, as `regrow.core.budget.prune_groups` does; all tensors are on one device."""
    found: dict[str, Tensor] = {}
    by_dtype: dict[torch.dtype, list[tuple[list[str], int]]] = {}
    for names, count in groups:
        if count:
            dtype = functools.reduce(torch.promote_types, [scores[name].dtype for name in names])
            by_dtype.setdefault(dtype, []).append((names, count))
        else:
            found.update({name: torch.ones_like(scores[name], dtype=torch.bool) for name in names})
    for dtype, wanted in by_dtype.items():
        group_of = {name: group for group, (names, _) in enumerate(wanted) for name in names}
        tensors = _Tensors([scores[name].detach() for name in group_of], list(group_of.values()), dtype)
        masks = _prune(tensors, list(group_of), [count for _, count in wanted], shards)
        found.update(zip(group_of, masks, strict=True))
    return {name: found[name] for names, _ in groups for name in names}


@dataclass(frozen=True)
class _Tensors:
    """Tensors in the order of their groups."""

    values: list[Tensor]
    groups: list[int]
    dtype: torch.dtype

    @functools.cached_property
    def starts(self) -> list[int]:
        """Where each tensor begins among the elements of all, and the number of all elements."""
        return list(accumulate((tensor.numel() for tensor in self.values), initial=0))

    @property
    def device(self) -> torch.device:
        return self.values[0].device

    def chunks(self, used: int) -> Iterator[_Chunk]:
        """Yield all rows in chunks; each needs, with `used` bytes, a fraction of the tensors' memory."""
        size = self.starts[-1]
        room = _MEMORY_FRACTION * sum(tensor.nbytes for tensor in self.values) - used
        count = -(-size * max(self.dtype.itemsize, 4) // int(room)) if room >= 1 else _MOST_CHUNKS
        limit = max(-(-size // min(count, _MOST_CHUNKS)), _LEAST)
        chunk = _Chunk([], [], self.dtype)
        free = limit
        for tensor, group in zip(self.values, self.groups, strict=True):
            rest = tensor
            while rest.numel():
                rows = max(free // rest[0].numel(), 1)
                piece, rest = rest[:rows], rest[rows:]
                chunk.pieces.append(piece)
                chunk.groups.append(group)
                free -= piece.numel()
                if free <= 0:
                    yield chunk
                    chunk = _Chunk([], [], self.dtype)
                    free = limit
        if chunk.pieces:
            yield chunk


@dataclass(frozen=True)
class _Chunk:
    """Rows of tensors that are read together, and the group of each piece."""

    pieces: list[Tensor]
    groups: list[int]
    dtype: torch.dtype

    def keys(self) -> Tensor:
        """Return the keys in logical order: the bits without the sign, as integers with room for differences."""
        sources = [bits(piece if piece.dtype is self.dtype else piece.to(self.dtype)) for piece in self.pieces]
        integer = torch.int64 if self.dtype.itemsize == 8 else torch.int32
        keys = torch.empty(sum(map(Tensor.numel, sources)), dtype=integer, device=sources[0].device)
        parts = [part.view(piece.shape) for part, piece in zip(self.split(keys), self.pieces, strict=True)]
        torch._foreach_copy_(parts, sources)
        return keys.bitwise_and_(largest_key(self.dtype))

    def split(self, keys: Tensor) -> list[Tensor]:
        return list(keys.split([piece.numel() for piece in self.pieces]))

    def add_(self, keys: Tensor, numbers: Tensor | Sequence[int]) -> None:
        """Add to every key the number of its group; with one group, the numbers may be on the device."""
        if isinstance(numbers, Tensor):
            keys.add_(numbers)
        else:
            torch._foreach_add_(self.split(keys), [numbers[group] for group in self.groups])


def _prune(tensors: _Tensors, names: list[str], counts: list[int], shards: ShardGroup) -> list[Tensor]:
    """Return the masks of all tensors, which are parts of one tensor."""
    key, pruned, ties = _thresholds(tensors, counts, shards)
    levels = _compare(tensors, key)
    limit = ties.cumsum(0) - ties + pruned  # among the ties of all groups
    places, nans = _first_kept(tensors, levels, limit, shards), _contain_nan(tensors.values)
    found = torch.cat([places, nans, shards.sum(nans)]).tolist()
    here, anywhere = found[len(places) : -len(nans)], found[-len(nans) :]
    if any(anywhere):
        raise NotANumberError(
            next((n for n, nan in zip(names, here, strict=True) if nan), "a shard of another process")
        )
    ends = list(pairwise(tensors.starts))
    firsts = found[: len(places)] if shards.sharded else [found[group] for group in tensors.groups]
    kept = [levels[max(first, start) : end] for first, (start, end) in zip(firsts, ends, strict=True) if first < end]
    if kept:
        torch._foreach_add_(kept, 1)
    keep = levels.clamp_(0, 1).view(torch.bool)
    return [keep[start:end].view(t.shape) for t, (start, end) in zip(tensors.values, ends, strict=True)]


def _thresholds(tensors: _Tensors, counts: list[int], shards: ShardGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each group the largest pruned key, how many of its ties are pruned, and how many it has."""
    number = torch.int64 if shards.sharded or tensors.starts[-1] >= 1 << 31 else torch.int32
    rank = _on_device(counts, tensors.device, number)[:, None]
    one, prefix, ties = torch.ones_like(rank[:1, 0]), None, rank
    for shift in range(8 * tensors.dtype.itemsize - _DIGIT, -1, -_DIGIT):
        histogram = shards.sum(_histogram(tensors, shift, prefix, len(counts), one))
        total = histogram.cumsum(1, dtype=number)
        digit = torch.searchsorted(total, rank)
        ties = histogram.gather(1, digit)
        rank = rank - total.gather(1, digit) + ties
        prefix = digit if prefix is None else (prefix << _DIGIT) | digit
        del histogram, total  # before the next round, which needs as much memory
    assert prefix is not None
    return prefix.view(-1), rank.view(-1), ties.view(-1)


def _histogram(tensors: _Tensors, shift: int, prefix: Tensor | None, groups: int, one: Tensor) -> Tensor:
    """Count a digit of the keys of each group; after the first round only of keys that continue the prefix.

    The other keys are counted before the first and after the last digit.
    """
    width = (1 << _DIGIT) + (0 if prefix is None else 2)
    copies = _COPIES if prefix is not None and groups == 1 else 1
    histogram = one.new_zeros(copies * groups * width)
    starts = list(range(0, len(histogram), width))
    first = None if prefix is None else _for_groups((1 << shift) - (prefix.view(-1) << (shift + _DIGIT)))
    for chunk in tensors.chunks(used=histogram.nbytes):
        keys = chunk.keys()
        if first is not None:
            chunk.add_(keys, first)
        if shift:
            keys.bitwise_right_shift_(shift)
        if first is not None:
            keys.clamp_(0, width - 1)
        if groups > 1:
            chunk.add_(keys, starts)
        elif copies > 1:
            torch._foreach_add_(keys.tensor_split(copies), starts)
        histogram.index_add_(0, keys, one.expand(len(keys)))
        del keys  # before the next chunk is read
    if copies > 1:
        histogram = histogram.view(copies, width).sum(0, dtype=one.dtype)
    histogram = histogram.view(groups, width)
    return histogram if prefix is None else histogram[:, 1:-1]


def _compare(tensors: _Tensors, key: Tensor) -> Tensor:
    """Return for each element of all tensors whether its key is smaller (-1), equal (0) or larger (1)."""
    size = tensors.starts[-1]
    levels = torch.empty((size // _ROW + 1) * _ROW, dtype=torch.int8, device=tensors.device)
    levels[size:].fill_(1)
    threshold, start = _for_groups(-key), 0
    for chunk in tensors.chunks(used=levels.nbytes):
        keys = chunk.keys()
        chunk.add_(keys, threshold)
        levels[start : start + len(keys)].copy_(keys.clamp_(-1, 1))
        start += len(keys)
        del keys  # before the next chunk is read
    return levels


def _first_kept(tensors: _Tensors, levels: Tensor, limit: Tensor, shards: ShardGroup) -> Tensor:
    """Return the position of the first tie that is kept, after `limit` others: per group, with shards per tensor."""
    rows = levels.view(-1, _ROW)
    ties = torch.empty(len(rows), dtype=torch.int64, device=levels.device)
    for part, count in zip(rows.chunk(2), ties.chunk(2), strict=True):  # to need half the memory
        torch.sum(part == 0, 1, out=count)
    upto = ties.cumsum(0)
    before = upto - ties
    if shards.sharded:
        # Ties are ordered by tensor, then by process: each tensor has its own limit among those of this process.
        place = _on_device(tensors.starts, levels.device)
        row = place // _ROW
        earlier = torch.arange(_ROW, device=levels.device) < (place % _ROW)[:, None]
        edges = before[row] + ((rows[row] == 0) & earlier).sum(1)
        others = shards.sum_before(edges.diff().cpu()).to(levels.device) - edges[:-1]
        limit = limit[_on_device(tensors.groups, levels.device)] - others
    row = torch.searchsorted(upto, limit, right=True).clamp_(max=len(rows) - 1)
    inside = (rows.index_select(0, row) == 0).cumsum(1)
    column = torch.searchsorted(inside, (limit - before.index_select(0, row))[:, None], right=True)
    return torch.add(column.view(-1), row, alpha=_ROW)


def _contain_nan(tensors: list[Tensor]) -> Tensor:
    """Return for each tensor whether it contains NaN, as a number."""
    return torch.stack(torch._foreach_norm(tensors, 1)).isnan().to(torch.int64)


def _for_groups(numbers: Tensor) -> Tensor | list[int]:
    """Return numbers that `_Chunk.add_` can add: foreach operations take those of several groups from the host."""
    return numbers[0] if len(numbers) == 1 else numbers.tolist()


def _on_device(numbers: list[int], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Copy numbers to the device without waiting for it."""
    return torch.tensor(numbers, dtype=dtype, device="cpu").to(device, non_blocking=True)
