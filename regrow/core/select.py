"""Exact selection of the k smallest magnitudes of many tensors, without sorting or concatenating them.

The bits of a float without its sign, read as an integer, have the order of its magnitude: they are its key. Radix
selection counts the leading 16 bits of all keys in a histogram, keeps the bucket that contains the k-th key, and
continues with the next 16 bits. Histograms of tensors add up, so shards exchange nothing else. On the CPU a sample
first narrows the search to a bracket of about one percent of the elements, and one pass in cache-sized chunks does the
rest.

The result is that of a stable sort of the magnitudes: of equal elements, those of earlier tensors, then those of lower
row-major index are pruned first, so that every rank and every rerun prunes the same weights.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regrow.core.bits import bits, in_memory_order, is_dense, largest_key, uses_numpy
from regrow.core.distributed import SINGLE_PROCESS, ShardGroup

_DIGIT = 16
_CHUNK = 1 << 16  # elements: a chunk and its temporaries stay in the L2 cache
_DEVICE_CHUNK = 1 << 20  # elements: large enough for an accelerator, a small part of a large model
_SAMPLE = 1 << 17


class NotANumberError(ValueError):
    """A score is NaN, which cannot be ordered."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} contains NaN, which cannot be ordered by magnitude: "
            "training has diverged (lower the learning rate, or resume from the last good checkpoint)"
        )


@dataclass(frozen=True)
class Threshold:
    """The largest key that is pruned, and how many of the `ties` equal to it are pruned."""

    key: int
    ties_pruned: int
    ties: int
    dtype: torch.dtype


def find_threshold(scores: Mapping[str, Tensor], count: int, shards: ShardGroup = SINGLE_PROCESS) -> Threshold | None:
    """Return the threshold that prunes exactly `count` elements over all processes of `shards`; None for zero."""
    if count == 0:
        return None
    scores = {name: _dense(score) for name, score in scores.items()}
    dtype = functools.reduce(torch.promote_types, [score.dtype for score in scores.values()])
    found = None
    if not shards.sharded and all(map(uses_numpy, scores.values())):
        found = _bracket(scores, count, dtype)
    return found or _radix(scores, count, dtype, shards)


def cut(scores: Iterable[Tensor], threshold: Threshold | None, shards: ShardGroup = SINGLE_PROCESS) -> Iterator[Tensor]:
    """Yield one mask per tensor, False where `threshold` prunes; with shards, the masks of this process's part."""
    scores = [_dense(score) for score in scores]
    if threshold is None:
        yield from (torch.ones_like(score, dtype=torch.bool) for score in scores)
        return
    partly = threshold.ties_pruned < threshold.ties
    offsets = None
    if partly and shards.sharded:
        ties = [int(torch.count_nonzero(_compare(operator.eq, score, threshold))) for score in scores]
        offsets = shards.sum_before(torch.tensor(ties, device="cpu")).tolist()
    before = 0
    for index, score in enumerate(scores):
        keep = _compare(operator.gt, score, threshold)
        if partly:  # the first of the elements at the threshold are pruned, the others kept
            places = _compare(operator.eq, score, threshold).flatten().nonzero().view(-1)
            pruned = threshold.ties_pruned - (before if offsets is None else offsets[index])
            kept = places[max(pruned, 0) :]
            keep.put_(kept, torch.ones_like(kept, dtype=torch.bool))
            before += len(places)
        yield keep


def _bracket(scores: Mapping[str, Tensor], count: int, dtype: torch.dtype) -> Threshold | None:
    """Find the threshold among the few keys near it, according to a sample; None if the sample was misleading."""
    total, infinity = sum(score.numel() for score in scores.values()), _infinity(dtype)
    stride = max(total // _SAMPLE, 1)
    samples = [_bits(in_memory_order(score)[::stride], dtype) for score in scores.values()]
    sample = np.sort(np.concatenate(samples) & largest_key(dtype))
    # Four standard deviations of a sampled rank: missing the bracket costs a slower pass, never a wrong answer.
    slack = 4 * (len(sample) / 4) ** 0.5
    first, last = (int(count / total * len(sample) + sign * slack) for sign in (-1, 1))
    low = int(sample[first]) if first > 0 else 0
    high = int(sample[last]) if last < len(sample) else infinity
    below, kept, inside = 0, 0, []
    for name, score in scores.items():
        for keys in _key_chunks(score, dtype):
            if len(keys) and keys.max() > infinity:
                raise NotANumberError(name)
            keys -= low
            # Below `low` the difference is negative, which is huge when read as unsigned: one comparison for two.
            chosen = np.compress(keys.view(f"u{keys.itemsize}") <= high - low, keys)
            below += int(np.count_nonzero(keys < 0))
            kept += len(chosen)
            if kept > max(total // 16, _CHUNK):  # too many equal elements to collect in memory
                return None
            inside.append(chosen)
    rank = count - below
    if not 0 < rank <= kept:
        return None
    found = np.concatenate(inside)
    found.partition(rank - 1)
    key = found[rank - 1]
    pruned = rank - int(np.count_nonzero(found < key))
    return Threshold(int(key) + low, pruned, int(np.count_nonzero(found == key)), dtype)


def _radix(scores: Mapping[str, Tensor], count: int, dtype: torch.dtype, shards: ShardGroup) -> Threshold:
    """Find the threshold 16 bits at a time, on any device and over any number of processes."""
    top, infinity = 8 * dtype.itemsize - 1, _infinity(dtype)
    prefix, rank, ties = 0, count, 0
    holder: str | None = None
    for shift in range(top + 1 - _DIGIT, -1, -_DIGIT):
        histogram = torch.zeros((1 << _DIGIT) + 1, dtype=torch.int64, device="cpu")  # the last one counts NaN
        for name, score in scores.items():
            for keys in map(torch.as_tensor, _key_chunks(score, dtype)):
                nans = int(torch.count_nonzero(keys > infinity))
                holder = name if nans and holder is None else holder
                digits = (keys[(keys >> min(shift + _DIGIT, top)) == prefix] >> shift) & ((1 << _DIGIT) - 1)
                histogram[:-1] += torch.bincount(digits, minlength=1 << _DIGIT).cpu()
                histogram[-1] += nans
        histogram = shards.sum(histogram)
        if histogram[-1]:
            raise NotANumberError(holder or "a shard of another process")
        total = histogram[:-1].cumsum(0)
        digit = int(torch.searchsorted(total, rank))
        ties = int(histogram[digit])
        rank -= int(total[digit]) - ties
        prefix = (prefix << _DIGIT) | digit
    return Threshold(prefix, rank, ties, dtype)


def _dense(score: Tensor) -> Tensor:
    return score if is_dense(score) else score.contiguous()


def _compare(operation: Callable[[Any, int], Any], score: Tensor, threshold: Threshold) -> Tensor:
    """Compare every key with the threshold's."""
    result = torch.empty_like(score, dtype=torch.bool)
    flat: Any = in_memory_order(result)
    flat = flat.numpy() if uses_numpy(score) else flat
    start = 0
    for keys in _key_chunks(score, threshold.dtype):
        flat[start : start + len(keys)] = operation(keys, threshold.key)
        start += len(keys)
    return result


def _key_chunks(score: Tensor, dtype: torch.dtype) -> Iterator[Any]:
    """Yield the keys in memory order, in chunks."""
    values = _bits(in_memory_order(score), dtype)
    size = _CHUNK if uses_numpy(score) else _DEVICE_CHUNK
    for start in range(0, len(values), size):
        yield values[start : start + size] & largest_key(dtype)


def _bits(flat: Tensor, dtype: torch.dtype) -> Any:
    """Return floats as integers: an array on the CPU, where numpy is several times faster than torch, else a tensor."""
    values = bits(flat.to(dtype))
    return values.numpy() if uses_numpy(flat) else values


def _infinity(dtype: torch.dtype) -> int:
    return int(bits(torch.tensor(torch.inf, dtype=dtype, device="cpu")))
