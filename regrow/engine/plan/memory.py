"""Memory that the processor can address cheaply: huge pages for everything that is not small."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20
HUGE_FROM = 256 << 10


@dataclass(frozen=True)
class Block:
    """Zeroed, page-aligned memory that is freed with this object."""

    owner: mmap.mmap
    address: int
    size: int

    @property
    def array(self) -> NDArray[np.uint8]:
        """Its bytes, for as long as somebody holds them."""
        whole = np.frombuffer(self.owner, np.uint8)
        first = self.address - whole.ctypes.data
        return whole[first : first + self.size]


def allocate(size: int) -> Block:
    """At least `size` bytes; above 256 KB on huge pages where the system has them."""
    huge = size >= HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE")
    alignment = HUGE_PAGE if huge else mmap.PAGESIZE
    rounded = -(-max(size, 1) // alignment) * alignment
    # Private, as a forked process must not compute in its parent's memory, and shared memory seldom has huge pages.
    owner = mmap.mmap(-1, rounded + (alignment if huge else 0), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(owner))
    shift = -start % alignment
    if huge:
        owner.madvise(mmap.MADV_HUGEPAGE, shift // mmap.PAGESIZE * mmap.PAGESIZE, rounded)
    return Block(owner, start + shift, rounded)
