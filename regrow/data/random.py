"""Counter-based random numbers (Philox): a function of (seed, epoch, index), so resumed and sharded runs agree."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]


class Stream(IntEnum):
    """Purpose of random numbers; streams of the same (seed, epoch) are independent."""

    ORDER = 0
    AUGMENT = 1
    HOLDOUT = 2
    BLOCKS = 3


def words(seed: int, epoch: int, stream: Stream, count: int, *, index: int = 0) -> Words:
    """Return `count` random 64-bit words of the Philox generator with key (seed, epoch).

    `stream` and `index` set the start of its counter, so their numbers are independent. Raw words, unlike NumPy's
    distributions, are the same in every version of NumPy.
    """
    check_counter("seed", seed)
    check_counter("epoch", epoch)
    # Philox increments the low counter word, so streams never overlap.
    generator = np.random.Philox(
        key=np.array([seed, epoch], dtype=np.uint64),
        counter=np.array([0, index, stream, 0], dtype=np.uint64),
    )
    return np.asarray(generator.random_raw(count), dtype=np.uint64)


def check_counter(what: str, value: int) -> None:
    """Refuse a seed or epoch that does not fit in a word of the generator's key."""
    if not 0 <= value < 2**64:
        raise ValueError(f"{what} must be in [0, 2**64), got {value}")


def permutation(seed: int, epoch: int, stream: Stream, count: int) -> Indices:
    """Return a random permutation of range(count)."""
    return np.argsort(words(seed, epoch, stream, count), kind="stable")


def below(draws: Words, bound: int, *, shift: int = 0) -> Indices:
    """Map 24 bits of each word, starting at bit `shift`, to integers in [0, bound)."""
    bits = (draws >> np.uint64(shift)) & np.uint64(0xFFFFFF)
    return ((bits * np.uint64(bound)) >> np.uint64(24)).astype(np.int64)


def unit_floats(draws: Words) -> NDArray[np.float64]:
    """Map each word to a number in [0, 1)."""
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53


def coins(draws: Words) -> NDArray[np.bool_]:
    """Map the top bit of each word to a fair coin."""
    return (draws >> np.uint64(63)).astype(np.bool_)
