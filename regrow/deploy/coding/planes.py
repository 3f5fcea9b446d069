"""All tensors of a model together: like parts of their codes lie side by side, where they compress best.

`index` is deflated JSON with one row for each tensor. `codes` starts with a deflate stream of the exponents
and the raw tensors; then come the signs and mantissas, then the low bits of the distances between non-zeros,
then what is left of each distance, in unary. The sizes of all these follow from the index.
"""

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from regrow.deploy.coding.bits import Bytes
from regrow.deploy.coding.deflate import deflate, deflate_text, inflate
from regrow.deploy.coding.index import Row, row_from_json
from regrow.deploy.coding.rice import pack_quotients, unpack_quotients
from regrow.deploy.coding.sparse_code import Code, Layout
from regrow.deploy.coding.tensor_code import CodedTensor
from regrow.deploy.container import PACKED

Scalar = TypeVar("Scalar", bound=np.generic)
Planes = dict[str, Bytes]

INDEX, CODES = f"{PACKED}index", f"{PACKED}codes"

# JSON takes some twenty times its length while it is read; real indices inflate about tenfold.
_LARGEST_INDEX = 1 << 20
_LARGEST_INDEX_RATIO = 64


def join(tensors: Sequence[CodedTensor]) -> Planes:
    """Lay the codes of all tensors out as the two planes of a packed file."""
    index = json.dumps([tensor.row.to_json() for tensor in tensors], separators=(",", ":"))
    codes = [code for tensor in tensors for code in tensor.codes]
    symbols = [codes[i].symbols for i in _by_width([code.layout for code in codes])]
    quotients = np.concatenate([np.zeros(0, np.uint64), *(code.quotients for code in codes)])
    parts = [
        _bytes(deflate([*symbols, *(tensor.raw for tensor in tensors)])),
        *(code.tails for code in codes),
        *(code.gaps for code in codes),
        pack_quotients(quotients),
    ]
    return {INDEX: _bytes(deflate_text(index.encode())), CODES: np.concatenate(parts)}


def split(planes: Planes, largest: int) -> list[CodedTensor]:
    """The inverse of `join`; a ValueError says what is wrong, or that tensors take over `largest` bytes."""
    rows = _read_index(planes[INDEX])
    promised = sum(row.dense_bytes for row in rows)
    if promised > largest:
        raise ValueError(
            f"its tensors would take {promised:,} bytes, more than the {largest:,} allowed for a file of its "
            f"size. If you trust it, pass max_bytes={promised}"
        )
    codes, raws = _read_codes(planes[CODES], rows)
    taken = iter(codes)
    return [CodedTensor(row, tuple(next(taken) for _ in row.layouts), raw) for row, raw in zip(rows, raws, strict=True)]


def _read_index(plane: Bytes) -> list[Row]:
    try:
        text, rest = inflate(plane.tobytes(), _LARGEST_INDEX + _LARGEST_INDEX_RATIO * len(plane))
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its index cannot be read: {error}") from None
    if rest or not isinstance(stored, list):
        raise ValueError("its index is not a list of rows")
    rows = [row_from_json(row) for row in stored]
    if len({row.name for row in rows}) != len(rows):
        raise ValueError("its index names a tensor twice")
    return rows


def _read_codes(plane: Bytes, rows: Sequence[Row]) -> tuple[list[Code], list[Bytes]]:
    """The codes of all arrays, and the bytes of each tensor that is raw."""
    layouts = [layout for row in rows for layout in row.layouts]
    order = _by_width(layouts)
    sizes = [layouts[i].symbol_bytes for i in order] + [row.raw_bytes for row in rows]
    try:
        deflated, rest = inflate(plane.tobytes(), sum(sizes))
    except ValueError as error:
        raise ValueError(f"its codes cannot be read: {error}") from None
    chunks = _cut(_bytes(deflated), sizes)
    symbols = dict(zip(order, chunks[: len(order)], strict=True))

    sizes = [layout.tail_bytes for layout in layouts] + [layout.gap_bytes for layout in layouts]
    fields = _cut(_bytes(rest[: sum(sizes)]), sizes)
    tails, gaps = fields[: len(layouts)], fields[len(layouts) :]
    counts = [layout.marked for layout in layouts]
    quotients = _pieces(unpack_quotients(_bytes(rest[sum(sizes) :]), sum(counts)), counts)
    codes = [Code(layout, symbols[i], tails[i], gaps[i], quotients[i]) for i, layout in enumerate(layouts)]
    return codes, chunks[len(order) :]


def _by_width(layouts: Sequence[Layout]) -> list[int]:
    """The order of the exponents: symbols of equal width together, since they share a Huffman code well."""
    return sorted(range(len(layouts)), key=lambda i: layouts[i].width)


def _cut(data: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    if len(data) != sum(sizes):
        raise ValueError(f"its codes have {len(data)} bytes where the index implies {sum(sizes)}")
    return _pieces(data, sizes)


def _pieces(array: npt.NDArray[Scalar], sizes: Sequence[int]) -> list[npt.NDArray[Scalar]]:
    return [array[start:stop] for start, stop in pairwise(accumulate(sizes, initial=0))]


def _bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)
