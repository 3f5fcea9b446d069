"""Reads arrays of bytes in the idx format of MNIST and its relatives, compressed or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from regrow.data.errors import DataError
from regrow.data.files import Bytes

_UBYTE = 8
_LARGEST = 2**30


def read(path: Path, dimensions: int) -> Bytes:
    """Return the array of unsigned bytes with that many dimensions in `path`; what else may be there is a `DataError`.

    The file is: two zero bytes, the type, the number of dimensions, each size as a big-endian 32-bit word, the bytes.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if header[:4] != bytes([0, 0, _UBYTE, dimensions]):
                raise DataError(f"is no idx file of bytes in {dimensions} dimensions (it begins with {header[:4]!r})")
            if len(header) < 4 + 4 * dimensions:
                raise DataError(f"ends within its header, after {len(header)} bytes")
            shape = tuple(int(size) for size in np.frombuffer(header, ">u4", offset=4))
            expected = math.prod(shape)
            if expected > _LARGEST:
                raise DataError(f"claims the impossible shape {shape}")
            content = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot be read ({error})") from error
    if len(content) != expected:
        more = "at least " if len(content) > expected else ""
        raise DataError(f"holds {more}{len(content)} bytes where its shape {shape} needs {expected}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape).copy()
