"""Randomness as a function of (seed, epoch, index): resumed and sharded runs draw what one run would."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]


class Stream(IntEnum):
    """What a draw is for; streams of one (seed, epoch) are independent."""

    ORDER = 0
    AUGMENT = 1
    HOLDOUT = 2
    BLOCKS = 3


def words(seed: int, epoch: int, stream: Stream, count: int, *, index: int = 0) -> Words:
    """Return `count` random 64-bit words of the Philox generator with key (seed, epoch).

    `stream` and `index` choose where its counter starts, which makes their draws independent.

    Raw words, unlike NumPy's distributions, are the same in every version of NumPy.
    """
    check_counter("seed", seed)
    check_counter("epoch", epoch)
    # The low counter word is what Philox counts up while drawing, so streams never overlap.
    generator = np.random.Philox(
        key=np.array([seed, epoch], dtype=np.uint64),
        counter=np.array([0, index, stream, 0], dtype=np.uint64),
    )
    return np.asarray(generator.random_raw(count), dtype=np.uint64)


def check_counter(what: str, value: int) -> None:
    """Refuse a seed or epoch that does not fit into a word of the generator's key."""
    if not 0 <= value < 2**64:
        raise ValueError(f"{what} must be in [0, 2**64), got {value}")


def permutation(seed: int, epoch: int, stream: Stream, count: int) -> Indices:
    """Return a random order of range(count)."""
    return np.argsort(words(seed, epoch, stream, count), kind="stable")


def below(draws: Words, bound: int, *, shift: int = 0) -> Indices:
    """Map 24 bits of each word, from bit `shift` on, to integers in [0, bound)."""
    bits = (draws >> np.uint64(shift)) & np.uint64(0xFFFFFF)
    return ((bits * np.uint64(bound)) >> np.uint64(24)).astype(np.int64)


def uniform(draws: Words) -> NDArray[np.float64]:
    """Map each word to a number in [0, 1)."""
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53


def coins(draws: Words) -> NDArray[np.bool_]:
    """Map the top bit of each word to a fair coin."""
    return (draws >> np.uint64(63)).astype(np.bool_)
