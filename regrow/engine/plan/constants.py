"""The read-only part of a plan: weights, tables and masks in one block."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regrow.engine.plan.arena import ALIGNMENT
from regrow.engine.plan.memory import allocate


class Constants:
    """Read-only data, each piece aligned, equal pieces stored once; arrays are copied when they are joined, not before.

    Those that are equally long are compared, which ends where they first differ: hashing would read all of each.
    """

    def __init__(self) -> None:
        self._pieces: defaultdict[int, list[tuple[int, memoryview]]] = defaultdict(list)
        self._size = 0

    def put(self, array: NDArray[Any]) -> int:
        """The offset of `array` among the constants."""
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
        """All of it, never empty, in memory that the kernels read it from: a large network's weights are there once."""
        size = self._size or ALIGNMENT
        joined = allocate(size).array[:size]
        for pieces in self._pieces.values():
            for offset, data in pieces:
                joined[offset : offset + data.nbytes] = data
        joined.flags.writeable = False
        return joined
