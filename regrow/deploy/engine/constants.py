"""The read-only part of a plan: weights, tables and masks in one block."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regrow.deploy.engine.arena import ALIGNMENT


class Constants:
    """Read-only data, each piece aligned, equal pieces stored once."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self._size = 0

    def put(self, array: NDArray[Any]) -> int:
        """The offset of `array` among the constants."""
        data = np.ascontiguousarray(array).tobytes()
        key = hashlib.sha256(data).digest()
        if key not in self._known:
            self._known[key] = self._size
            self._pieces.append(data + bytes(-len(data) % ALIGNMENT))
            self._size += len(self._pieces[-1])
        return self._known[key]

    def joined(self) -> NDArray[np.uint8]:
        """All of it, never empty."""
        return np.frombuffer(b"".join(self._pieces) or bytes(ALIGNMENT), np.uint8)
