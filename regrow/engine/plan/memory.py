"""Memory of a plan: offsets of buffers in one arena, the block of constants, and huge pages for both."""

from __future__ import annotations

import mmap
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regrow.engine.ops.conv import ConvStep
from regrow.engine.plan.steps import Buffer, Schedule, Step
from regrow.system import zeroed_memory

ALIGNMENT = 64
HUGE_PAGE = 2 << 20
HUGE_FROM = 256 << 10
"""Bytes from which memory is put on huge pages."""


@dataclass(frozen=True)
class Arena:
    """The offset of each buffer, and the size of all together, in bytes."""

    offsets: dict[Buffer, int]
    size: int


def place_buffers(schedule: Schedule) -> Arena:
    """Place buffers by first fit, in running order. A buffer is free after the last step (or band) that uses it.

    So is the halo buffer of an image: threads wait for each other before the next step writes (halo_exchange.c).
    """
    steps = enumerate(schedule.steps)
    last = {buffer.whole: position for position, step in steps for buffer in (*step.reads, *step.writes)}
    last |= {buffer: last[image] for image, buffer in schedule.halo_buffers.items()}
    offsets: dict[Buffer, int] = {}
    alive: dict[Buffer, tuple[int, int]] = {}
    top = bands_end = 0
    windows: Buffer | None = None
    for position, step in enumerate(schedule.steps):
        if isinstance(step, ConvStep) and step.followers:
            # Later bands still read it, outside of their own rows.
            bands_end, windows = position + step.followers, step.x.whole
        written = [buffer.whole for buffer in step.writes]
        halo_buffers = [schedule.halo_buffers[image] for image in written if image in schedule.halo_buffers]
        for buffer in (*written, *halo_buffers):
            if buffer.external is not None or buffer in offsets:
                continue
            old = _overwritten(step, buffer, {b for b in alive if last[b] == position and b is not windows})
            if old is not None:
                alive[buffer] = alive.pop(old)
            else:
                alive[buffer] = _first_gap(sorted(alive.values()), buffer.nbytes(schedule.lanes))
            offsets[buffer] = alive[buffer][0]
            top = max(top, alive[buffer][1])
        if position >= bands_end:
            alive, windows = {b: span for b, span in alive.items() if last[b] > position}, None
    return Arena(offsets, top)


def _overwritten(step: Step, out: Buffer, free: set[Buffer]) -> Buffer | None:
    """Return an operand that `out` can replace in memory: no later step reads it."""
    for operand in step.overwritable:
        same = operand.planes == out.planes and (operand.channels, operand.pixels) == (out.channels, out.pixels)
        if operand in free and out.root is None and same:
            return operand
    return None


def _first_gap(taken: list[tuple[int, int]], size: int) -> tuple[int, int]:
    size = -(-size // ALIGNMENT) * ALIGNMENT
    start = 0
    for first, last in taken:
        if first - start >= size:
            break
        start = max(start, last)
    return (start, start + size)


class Constants:
    """Read-only arrays, each aligned, equal ones stored once. They are copied when they are joined, not before.

    Arrays of equal length are compared, which stops at the first difference; hashing would read all of them.
    """

    def __init__(self) -> None:
        self._pieces: defaultdict[int, list[tuple[int, memoryview]]] = defaultdict(list)
        self._size = 0

    def put(self, array: NDArray[Any]) -> int:
        """Add an array and return its offset."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        known = self._pieces[data.nbytes]
        for offset, piece in known:
            if piece == data:
                return offset
        offset = self._size
        known.append((offset, data))
        self._size += -(-data.nbytes // ALIGNMENT) * ALIGNMENT
        return offset

    def joined(self) -> NDArray[np.uint8]:
        """Return all of them in one block, which is never empty."""
        size = self._size or ALIGNMENT
        joined = allocate(size)[:size]
        for pieces in self._pieces.values():
            for offset, data in pieces:
                joined[offset : offset + data.nbytes] = data
        joined.flags.writeable = False
        return joined


def allocate(size: int) -> NDArray[np.uint8]:
    """Return at least `size` zeroed, page-aligned bytes, on huge pages if they are many and the system has huge pages.

    The memory is freed with the array.
    """
    huge = sys.platform == "linux" and size >= HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE")
    alignment = HUGE_PAGE if huge else mmap.PAGESIZE
    rounded = -(-max(size, 1) // alignment) * alignment
    owner = zeroed_memory(rounded + (alignment if huge else 0))
    whole = np.frombuffer(owner, np.uint8)
    shift = -whole.ctypes.data % alignment
    if sys.platform == "linux" and huge:
        owner.madvise(mmap.MADV_HUGEPAGE, shift // mmap.PAGESIZE * mmap.PAGESIZE, rounded)
    return whole[shift : shift + rounded]
