"""Reads CIFAR's original batches, which are Python pickles, without running anything that a pickle could ask for."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from regrow.data.draws import Indices
from regrow.data.errors import DataError
from regrow.data.files import Bytes

_PIXELS = 3 * 32 * 32


class _Request:
    """What the pickle asks NumPy to do, written down instead of done."""

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.name, self.args = name, args
        self.state: Any = None

    def __call__(self, *args: Any) -> _Request:
        return _Request(self.name, args)

    def __setstate__(self, state: Any) -> None:
        self.state = state


# The unpickler in C allocates as much memory as a file says it should; the one in Python does not, and is fast enough.
class _Reader(pickle._Unpickler):
    """An unpickler that knows the three names in CIFAR's files, and only as words."""

    def find_class(self, module: str, name: str) -> _Request:
        if (module.replace("._core", ".core"), name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }:
            return _Request(name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch does")


def read_batch(content: bytes, label: str) -> tuple[Bytes, Indices]:
    """Return the images (N, 3, 32, 32) and the labels under the key `label` of a pickled CIFAR batch.

    Anything that is not such a batch is a `DataError` that says why (and leaves it to the caller to say where).
    """
    try:
        batch = _Reader(io.BytesIO(content), encoding="bytes").load()
    # A broken pickle can fail in any way at all.
    except Exception as error:
        raise DataError(f"is not a CIFAR batch ({error or type(error).__name__})") from error
    if not isinstance(batch, dict):
        raise DataError(f"is not a CIFAR batch (it holds a {type(batch).__name__}, not a dict)")
    images, labels = _array(batch.get(b"data")), batch.get(label.encode())
    if not isinstance(labels, list) or not all(type(value) is int for value in labels):
        raise DataError(f"is not a CIFAR batch (no list of integers under {label!r})")
    if len(labels) != len(images):
        raise DataError(f"holds {len(images)} images but {len(labels)} labels")
    return images, np.array(labels, dtype=np.int64)


def _array(request: Any) -> Bytes:
    """Return the uint8 array of shape (N, 3072) that NumPy was asked for, as images."""
    match request:
        case _Request(
            name="_reconstruct",
            state=(_, (int(count), int(width)), _Request(name="dtype", args=(kind, *_)), False, bytes(content)),
        ) if kind in (b"u1", "u1") and width == _PIXELS and count * width == len(content):
            return np.frombuffer(content, dtype=np.uint8).reshape(count, 3, 32, 32)
    raise DataError(f"is not a CIFAR batch (no array of bytes with {_PIXELS} columns under 'data')")
