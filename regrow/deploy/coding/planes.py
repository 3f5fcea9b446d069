"""All tensors of a model together: like parts of their codes lie side by side, where they compress best.

Packed bytes are three deflate streams (the index as JSON, the raw tensors, the exponents), then the whole bytes of
the other fields (signs and mantissas, low bits of the distances between non-zeros), then one stream of bits: what is
left of those fields and, in unary, what is left of each distance. The sizes of all these follow from the index.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from regrow.deploy.coding.bits import Bits, Bytes
from regrow.deploy.coding.deflate import deflate, deflate_text, inflate
from regrow.deploy.coding.index import (
    RAW,
    Block,
    Spec,
    arrange,
    columns,
    digest,
    layouts_from_columns,
    specs_from_json,
)
from regrow.deploy.coding.rice import pack_quotients, unpack_quotients
from regrow.deploy.coding.sparse_code import FORMATS, BitPattern, Code, Fields, Layout, NonZeros, decode, encode
from regrow.deploy.coding.tensor_code import Array, StoredTensor, patterns_of, spec_of

Scalar = TypeVar("Scalar", bound=np.generic)

# JSON takes some twenty times its length while it is read; real indices inflate to less than ten times the file.
_LARGEST_INDEX = 1 << 20
_LARGEST_INDEX_RATIO = 16


def join(state: Mapping[str, Tensor], dtype: str, known: list[Spec] | None) -> bytes:
    """Pack all tensors of `state` in `dtype`; if they are those `known` to the reader, they are not listed."""
    specs = [spec_of(name, tensor) for name, tensor in state.items()]
    patterns = [patterns_of(spec.name, state[spec.name], spec.stored_as(dtype)) for spec in specs]
    raws = [patterns[i].pop() for i, spec in enumerate(specs) if spec.stored_as(dtype) == RAW]
    blocks = arrange(specs, dtype)
    # Each tensor gives its arrays in the order of the blocks: scales first, then weights.
    codes = [encode(_whole([patterns[i].pop(0) for i in block.tensors]), FORMATS[block.format]) for block in blocks]
    layouts = [code.layout for code in codes]
    fields = [code.tails for code in codes] + [code.gaps for code in codes]
    tensors = digest(specs) if specs == known else [spec.to_json() for spec in specs]
    quotients = np.concatenate([np.zeros(0, np.uint64), *(code.quotients for code in codes)])
    return b"".join(
        [
            deflate_text(json.dumps([tensors, *columns(layouts)], separators=(",", ":")).encode()),
            deflate_text(b"".join(raw.tobytes() for raw in raws)),
            deflate([codes[i].symbols for i in _alike(layouts)]),
            *(low.tobytes() for low, _ in fields),
            np.packbits(np.concatenate([*(bits for _, bits in fields), pack_quotients(quotients)])).tobytes(),
        ]
    )


def _whole(arrays: Sequence[BitPattern]) -> BitPattern:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@dataclass(frozen=True)
class Index:
    """What packed bytes say of themselves: the tensors, or a digest of them, and columns still to be checked."""

    tensors: list[Spec] | str
    columns: list[object]
    codes: bytes

    @property
    def length(self) -> int:
        """How many tensors are listed or, where none are, how many arrays."""
        first = self.columns[0] if self.columns else None
        listed = first if isinstance(self.tensors, str) else self.tensors
        return len(listed) if isinstance(listed, list) else 0

    def specs(self, known: list[Spec] | None) -> list[Spec]:
        """The tensors in the file: those listed, or those `known` to the reader if they have the digest."""
        if not isinstance(self.tensors, str):
            return self.tensors
        if known is None:
            raise ValueError("it neither lists its tensors nor names a network that has them")
        if self.tensors != digest(known):
            raise ValueError(
                "the network that it names has other tensors than it was saved with. If regrow has changed since, "
                "load it with the version that saved it"
            )
        return known


def read_index(data: bytes) -> Index:
    """What packed bytes say of themselves; a ValueError says what is wrong."""
    try:
        text, codes = inflate(data, _LARGEST_INDEX + _LARGEST_INDEX_RATIO * len(data))
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its index cannot be read: {error}") from None
    if not isinstance(stored, list) or not stored or not isinstance(stored[0], list | str):
        raise ValueError("its index does not start with its tensors")
    tensors = stored[0] if isinstance(stored[0], str) else specs_from_json(stored[0])
    return Index(tensors, stored[1:], codes)


def split(index: Index, specs: Sequence[Spec], dtype: str, largest: int) -> Iterator[StoredTensor]:
    """The inverse of `join`, in any order; a ValueError says what is wrong, or that they take over `largest` bytes."""
    promised = sum(spec.dense_bytes for spec in specs)
    if promised > largest:
        raise ValueError(
            f"its tensors would take {promised:,} bytes, more than the {largest:,} allowed for a file of its "
            f"size. If you trust it, pass max_bytes={promised}"
        )
    forms = [spec.stored_as(dtype) for spec in specs]
    raw_bytes = [spec.dense_bytes if form == RAW else 0 for spec, form in zip(specs, forms, strict=True)]
    blocks = arrange(specs, dtype)
    codes, raws = _read_codes(index.codes, layouts_from_columns(index.columns, blocks), raw_bytes)
    arrays: dict[int, tuple[Array, ...]] = {}
    for i, form in enumerate(forms):
        if form == RAW:
            yield StoredTensor(specs[i], form, (), raws[i])
    for block, code in zip(blocks, codes, strict=True):
        for i, array in zip(block.tensors, _arrays(block, code), strict=True):
            arrays[i] = (*arrays.get(i, ()), array)
            if len(arrays[i]) == (2 if forms[i] == "int8" else 1):
                yield StoredTensor(specs[i], forms[i], arrays.pop(i), raws[i])


def _arrays(block: Block, code: Code) -> list[Array]:
    try:
        whole = decode(code)
    except ValueError as error:
        raise ValueError(f"{block.name!r}: {error}") from None
    if len(block.sizes) == 1:
        return [whole]
    return [NonZeros(None, piece) for piece in _pieces(whole.dense(code.layout.count), block.sizes)]


def _read_codes(data: bytes, layouts: Sequence[Layout], raw_bytes: Sequence[int]) -> tuple[list[Code], list[Bytes]]:
    """The codes of all arrays, and the bytes of each tensor that is raw."""
    order = _alike(layouts)
    sizes = [layouts[i].symbol_bytes for i in order]
    try:
        raw, rest = inflate(data, sum(raw_bytes))
        deflated, rest = inflate(rest, sum(sizes))
    except ValueError as error:
        raise ValueError(f"its codes cannot be read: {error}") from None
    raws, symbols = _cut(_bytes(raw), raw_bytes), dict(zip(order, _cut(_bytes(deflated), sizes), strict=True))

    (tails, gaps), unary = _read_fields(rest, layouts)
    counts = [layout.marked for layout in layouts]
    quotients = _pieces(unpack_quotients(unary, sum(counts)), counts)
    codes = [Code(layout, symbols[i], tails[i], gaps[i], quotients[i]) for i, layout in enumerate(layouts)]
    return codes, raws


def _read_fields(data: bytes, layouts: Sequence[Layout]) -> tuple[tuple[list[Fields], list[Fields]], Bits]:
    """Signs and mantissas of all arrays, and low bits of all gaps; then the bits that are left."""
    byte_sizes = [layout.field_bytes[kind] for kind in (0, 1) for layout in layouts]
    bit_sizes = [layout.field_bits[kind] for kind in (0, 1) for layout in layouts]
    low = _cut(_bytes(data[: sum(byte_sizes)]), byte_sizes)
    bits = np.unpackbits(_bytes(data[sum(byte_sizes) :]))
    if len(bits) < sum(bit_sizes):
        raise ValueError(f"its codes have {len(bits)} bits where the index implies {sum(bit_sizes)} and more")
    fields = list(zip(low, _pieces(bits, bit_sizes), strict=True))
    return (fields[: len(layouts)], fields[len(layouts) :]), bits[sum(bit_sizes) :]


def _alike(layouts: Sequence[Layout]) -> list[int]:
    """The order of the exponents: those that share a Huffman table well are neighbours.

    Symbols of equal width, and then arrays of like density: where one threshold has pruned all layers, the density
    of a layer says how its magnitudes lie above it.
    """
    return sorted(range(len(layouts)), key=lambda i: (layouts[i].width, layouts[i].nonzeros / layouts[i].count))


def _cut(data: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    if len(data) != sum(sizes):
        raise ValueError(f"its codes have {len(data)} bytes where the index implies {sum(sizes)}")
    return _pieces(data, sizes)


def _pieces(array: npt.NDArray[Scalar], sizes: Sequence[int]) -> list[npt.NDArray[Scalar]]:
    return [array[start:stop] for start, stop in pairwise(accumulate(sizes, initial=0))]


def _bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)
