"""The index of a packed file: one row for each tensor, from which the size of everything else follows."""

from dataclasses import dataclass
from math import prod
from reprlib import repr as shortened
from typing import Any

import torch

from regrow.deploy.coding.sparse_code import FORMATS, Layout

RAW = "raw"
EXACT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
"""The format that holds each floating-point type without change."""

_OTHERS = (
    torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*EXACT, *_OTHERS)}
"""The types of tensors that a packed file holds, by name."""

_MOST_DIMENSIONS = 32
_LARGEST_DIMENSION = 1 << 48


def forms(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[str, ...]:
    """How a tensor may be stored, exactly first.

    Only weights, which have two dimensions or more, may lose precision; what is no float is stored raw.
    """
    if dtype not in EXACT or 0 in shape:
        return (RAW,)
    exact = EXACT[dtype]
    if len(shape) < 2:
        return (exact,)
    return tuple(FORMATS) if exact == "fp32" else (exact, "int8")


@dataclass(frozen=True)
class Row:
    """One tensor: `form` is how it is stored, `layouts` describe its codes (none if it is raw)."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    form: str
    layouts: tuple[Layout, ...] = ()

    @property
    def dense_bytes(self) -> int:
        """The bytes of the tensor in memory."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def raw_bytes(self) -> int:
        """The bytes of a raw tensor, before they are deflated."""
        return self.dense_bytes if self.form == RAW else 0

    def to_json(self) -> list[Any]:
        """The row as JSON holds it: name, type, shape, and four numbers for each code."""
        dtype = str(self.dtype).removeprefix("torch.")
        kind = dtype if self.form == forms(self.dtype, self.shape)[0] else f"{dtype} as {self.form}"
        layouts = [[one.nonzeros, one.shift, one.top, one.width] for one in self.layouts]
        return [self.name, kind, list(self.shape), *layouts]


def row_from_json(row: object) -> Row:
    """Read a row, believing nothing: a ValueError says what is wrong."""
    if not isinstance(row, list) or len(row) < 3 or not isinstance(row[0], str):
        raise ValueError("a row of its index does not start with a name, a type and a shape")
    name, kind, shape, *layouts = row
    try:
        return _row(name, kind, _shape(shape), layouts)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None


def _row(name: str, kind: object, shape: tuple[int, ...], layouts: list[object]) -> Row:
    dtype, _, form = kind.partition(" as ") if isinstance(kind, str) else ("", "", "")
    if dtype not in DTYPES:
        raise ValueError(f"{shortened(kind)} is no type of tensors; known are {', '.join(DTYPES)}")
    allowed = forms(DTYPES[dtype], shape)
    form = form or allowed[0]
    if form not in allowed:
        raise ValueError(f"it cannot be stored as {shortened(form)}, only as {', '.join(allowed)}")
    arrays = arrays_of(form, shape)
    if len(layouts) != len(arrays):
        raise ValueError(f"it has {len(layouts)} codes instead of {len(arrays)}")
    return Row(name, DTYPES[dtype], shape, form, tuple(map(_layout, arrays, layouts)))


def arrays_of(form: str, shape: tuple[int, ...]) -> list[tuple[str, int]]:
    """The format and length of each array of a tensor: int8 has one scale per output channel."""
    if form == RAW:
        return []
    return [(form, prod(shape))] + ([("bf16", shape[0])] if form == "int8" else [])


def _layout(array: tuple[str, int], numbers: object) -> Layout:
    if not isinstance(numbers, list) or len(numbers) != 4 or not all(type(number) is int for number in numbers):
        raise ValueError("its code is not described by four whole numbers")
    return Layout(FORMATS[array[0]], array[1], *numbers)


def _shape(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"its shape is not a list of at most {_MOST_DIMENSIONS} sizes")
    if not all(type(size) is int and 0 <= size < _LARGEST_DIMENSION for size in shape):
        raise ValueError("its shape holds something that is not a size")
    return tuple(shape)
