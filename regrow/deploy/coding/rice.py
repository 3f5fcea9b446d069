"""Golomb-Rice codes for where a mask is set: close to its entropy, and decoded without a loop."""

import numpy as np
import numpy.typing as npt

from regrow.deploy.coding.bits import Bits, Words

Positions = npt.NDArray[np.int64]


def gaps_of(positions: Positions) -> Words:
    """How many elements are skipped before each of the increasing `positions`."""
    return (np.diff(positions, prepend=-1) - 1).astype(np.uint64)


def positions_of(gaps: Words) -> Positions:
    """The inverse of `gaps_of`."""
    return np.cumsum(gaps.astype(np.int64) + 1) - 1


def best_shift(gaps: Words) -> int:
    """The Rice parameter k that codes `gaps` in the fewest bits: k low bits plainly, the rest in unary."""
    if not len(gaps):
        return 0
    guess = max(0, int(gaps.sum() // len(gaps)).bit_length() - 1)
    candidates = range(max(0, guess - 1), guess + 2)
    return min(candidates, key=lambda k: k * len(gaps) + int((gaps >> np.uint64(k)).sum()))


def pack_quotients(quotients: Words) -> Bits:
    """Write each number q as q zeros and a one."""
    ends = np.cumsum(quotients.astype(np.int64) + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    bits[ends] = 1
    return bits


def unpack_quotients(bits: Bits, count: int) -> Words:
    """Read `count` unary numbers, after which less than a byte of zeros is left.

    The ones are counted before a list of them is made, so that memory is bounded by `count` and the data.
    """
    ones = bits.view(bool)  # numpy finds and counts truth values much faster than numbers
    found = int(np.count_nonzero(ones))
    if found != count:
        raise ValueError(f"its mask has {found} unary codes where the index implies {count}")
    ends = np.flatnonzero(ones)
    if len(bits) - (int(ends[-1]) + 1 if count else 0) >= 8:
        raise ValueError("it has bytes after its last unary code")
    return gaps_of(ends)
