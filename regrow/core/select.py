"""Exactly the k smallest magnitudes of many tensors, found on the bits of their floats without sorting or joining them.

The bits of a float without its sign, read as an integer, order like its magnitude. Radix selection counts their leading
16 bits in a histogram, keeps the bucket that holds the k-th element, and goes on with the next 16 bits. Histograms of
tensors add up, so shards need to exchange nothing else. On the CPU a sample first narrows the search to a bracket of
about one per cent of the elements, and one pass in cache-sized chunks does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regrow.core.targets import in_memory_order

Reduce = Callable[[Tensor], Tensor]

_INTEGERS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
_DIGIT = 16
_CHUNK = 1 << 16  # elements: a chunk and its temporaries stay in the L2 cache
_DEVICE_CHUNK = 1 << 20  # elements: large enough for an accelerator, a small part of a large model
_SAMPLE = 1 << 17


class NotANumberError(ValueError):
    """A score is NaN, so that there is no order; `index` tells which tensor holds it."""

    def __init__(self, index: int) -> None:
        super().__init__(f"tensor {index} holds NaN")
        self.index = index


@dataclass(frozen=True)
class Threshold:
    """The magnitude up to which elements are pruned, as a key, and how many of those that equal it are."""

    key: int
    ties_pruned: int
    ties: int
    dtype: torch.dtype


def prune_smallest(scores: Sequence[Tensor], count: int) -> Iterator[Tensor]:
    """Yield one mask per tensor, False for the `count` elements of least magnitude over all of them.

    The result is that of a stable sort of the magnitudes: of equal elements those of earlier tensors, then those of
    lower row-major index are pruned first, so that every rank and every rerun chooses the same set. Masks are made one
    at a time, in the memory format of their scores.
    """
    threshold = find_threshold(scores, count)
    left = threshold.ties_pruned if threshold else 0
    for score in scores:
        if threshold is None:
            yield torch.ones_like(score, dtype=torch.bool)
            continue
        keep = _above(score, threshold)
        if threshold.ties_pruned < threshold.ties:  # rare: only some of the elements at the threshold go
            ties = (_keys(score, threshold.dtype) == threshold.key).reshape(-1).nonzero().view(-1)
            spared = torch.zeros(score.numel(), dtype=torch.bool, device=score.device)
            spared[ties[left:]] = True
            keep |= spared.view(score.shape)
            left = max(left - len(ties), 0)
        yield keep


def find_threshold(scores: Sequence[Tensor], count: int, *, reduce: Reduce | None = None) -> Threshold | None:
    """Return where to cut so that exactly `count` elements go; None if none does. `reduce` sums over shards."""
    if count == 0:
        return None
    dtype = scores[0].dtype
    for score in scores:
        dtype = torch.promote_types(dtype, score.dtype)
    if reduce is None and all(score.device.type == "cpu" for score in scores):
        bracketed = _bracket(scores, count, dtype)
        if bracketed is not None:
            keys, below = bracketed
            return _radix([keys], count - below, dtype, None)
    return _radix(scores, count, dtype, reduce)


def _radix(scores: Sequence[Tensor], count: int, dtype: torch.dtype, reduce: Reduce | None) -> Threshold:
    integer = _INTEGERS[dtype]
    shift = torch.iinfo(integer).bits
    prefix, rank, ties = 0, count, 0
    while shift > 0:
        shift -= _DIGIT
        histogram = torch.zeros(1 << _DIGIT, dtype=torch.int64, device="cpu")
        for index, score in enumerate(scores):
            for keys in _key_chunks(score, dtype):
                _refuse_nan(keys, dtype, index)
                if shift + _DIGIT < torch.iinfo(integer).bits:
                    keys = keys[(keys >> (shift + _DIGIT)) == prefix]
                digits = (keys >> shift) & ((1 << _DIGIT) - 1)
                histogram += torch.bincount(digits, minlength=1 << _DIGIT).cpu()
        if reduce is not None:
            histogram = reduce(histogram)
        total = histogram.cumsum(0)
        digit = int(torch.searchsorted(total, rank))
        ties = int(histogram[digit])
        rank -= int(total[digit]) - ties
        prefix = (prefix << _DIGIT) | digit
    return Threshold(prefix, rank, ties, dtype)


def _bracket(scores: Sequence[Tensor], count: int, dtype: torch.dtype) -> tuple[Tensor, int] | None:
    """Return the keys in a narrow range around the `count`-th one and how many lie below it; None if that fails."""
    total = sum(score.numel() for score in scores)
    stride = max(total // _SAMPLE, 1)
    sample = np.sort(np.concatenate([_numpy_keys(score, dtype, stride) for score in scores]))
    # Four standard deviations of a sampled rank: missing the bracket costs a slower pass, never a wrong answer.
    slack = 4 * (len(sample) / 4) ** 0.5
    first, last = (int(count / total * len(sample) + sign * slack) for sign in (-1, 1))
    low = int(sample[first]) if first > 0 else 0
    high = int(sample[last]) if last < len(sample) else _infinity(dtype)
    infinity, below, inside, kept = _infinity(dtype), 0, [], 0
    scratch = np.empty(_CHUNK, dtype=sample.dtype)
    for index, score in enumerate(scores):
        for keys in _numpy_chunks(score, dtype, scratch):
            if len(keys) and keys.max() > infinity:
                raise NotANumberError(index)
            np.subtract(keys, low, out=keys)
            # Below `low` the difference is negative, which is huge when read as unsigned: one comparison for two.
            chosen = np.compress(keys.view(f"u{keys.itemsize}") <= high - low, keys)
            below += int(np.count_nonzero(keys < 0))
            kept += len(chosen)
            if kept > max(total // 16, _CHUNK):  # many equal elements: collecting them would cost memory
                return None
            inside.append(chosen)
    if not below < count <= below + kept:
        return None
    found = np.concatenate(inside)
    found += np.asarray(low, dtype=found.dtype)
    return torch.from_numpy(found).view(dtype), below


def _above(score: Tensor, threshold: Threshold) -> Tensor:
    keep = torch.empty_like(score, dtype=torch.bool)
    flat, into = in_memory_order(score), in_memory_order(keep)
    if score.device.type == "cpu":
        scratch = np.empty(_CHUNK, dtype=_numpy_integer(threshold.dtype))
        chunks = _numpy_chunks(flat, threshold.dtype, scratch)
        for bits, part in zip(chunks, into.split(_CHUNK), strict=True):
            np.greater(bits, threshold.key, out=part.numpy())
    else:
        for keys, part in zip(_key_chunks(flat, threshold.dtype), into.split(_DEVICE_CHUNK), strict=True):
            torch.gt(keys, threshold.key, out=part)
    return keep


def _keys(score: Tensor, dtype: torch.dtype) -> Tensor:
    return score.detach().to(dtype).view(_INTEGERS[dtype]) & torch.iinfo(_INTEGERS[dtype]).max


def _key_chunks(score: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    for chunk in in_memory_order(score.detach()).split(_DEVICE_CHUNK):
        yield _keys(chunk, dtype)


def _numpy_integer(dtype: torch.dtype) -> np.dtype[np.signedinteger]:
    return np.dtype(f"i{dtype.itemsize}")


def _numpy_bits(flat: Tensor, dtype: torch.dtype) -> np.ndarray:
    bits: np.ndarray = flat.to(dtype).view(_INTEGERS[dtype]).numpy()
    return bits


def _numpy_keys(score: Tensor, dtype: torch.dtype, stride: int) -> np.ndarray:
    bits = _numpy_bits(in_memory_order(score.detach())[::stride].contiguous(), dtype)
    return bits & np.iinfo(bits.dtype).max


def _numpy_chunks(score: Tensor, dtype: torch.dtype, scratch: np.ndarray) -> Iterator[np.ndarray]:
    magnitude = np.iinfo(scratch.dtype).max
    for chunk in in_memory_order(score.detach()).split(_CHUNK):
        yield np.bitwise_and(_numpy_bits(chunk, dtype), magnitude, out=scratch[: len(chunk)])


def _infinity(dtype: torch.dtype) -> int:
    return int(_keys(torch.tensor([float("inf")], dtype=dtype, device="cpu"), dtype))


def _refuse_nan(keys: Tensor, dtype: torch.dtype, index: int) -> None:
    if len(keys) and int(keys.max()) > _infinity(dtype):
        raise NotANumberError(index)
