"""Index and byte streams of a packed file.

Similar bytes compress better together, so a file stores the same part of all arrays side by side. After the checksum,
its bytes are, in this order:

    deflate   index: JSON with the tensors and the layout of each array; all sizes below follow from it
    deflate   raw tensors (integers, booleans)
    deflate   exponents of the non-zeros of all arrays
    bytes     signs and mantissas of all arrays, then low bits of the gaps between non-zeros: whole bytes
    bits      the remaining bits of both, then the quotient of each gap in unary
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from math import prod
from reprlib import repr as shortened
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regrow.files.entropy import Bits, Bytes, deflate, deflate_text, inflate
from regrow.files.sparse_array import (
    FORMATS,
    ArrayLayout,
    BitPattern,
    Code,
    Fields,
    SparseArray,
    decode,
    encode,
    pack_quotients,
    unpack_quotients,
)
from regrow.files.tensors import DTYPES, RAW, Array, StoredTensor, TensorSpec, patterns_of, spec_of

Scalar = TypeVar("Scalar", bound=np.generic)

# Parsing JSON takes about twenty times its length; real indices inflate to less than ten times the file.
_LARGEST_INDEX = 1 << 20
_LARGEST_INDEX_RATIO = 16

_MOST_DIMENSIONS = 32
_LARGEST_DIMENSION = 1 << 48
_LARGEST_TENSOR = 1 << 60  # also for empty tensors: torch multiplies their other sizes


@dataclass(frozen=True)
class ArrayGroup:
    """Arrays of one format that are coded as one array, with the number of the tensor and the length of each."""

    name: str
    format: str
    tensors: tuple[int, ...]
    sizes: tuple[int, ...]


def encode_tensors(state: Mapping[str, Tensor], dtype: str, known: list[TensorSpec] | None) -> bytes:
    """Pack all tensors of `state` in `dtype`. If they equal those `known` to the reader, the index has a digest."""
    specs = [spec_of(name, tensor) for name, tensor in state.items()]
    patterns = [patterns_of(spec.name, state[spec.name], spec.stored_as(dtype)) for spec in specs]
    raws = [patterns[i].pop() for i, spec in enumerate(specs) if spec.stored_as(dtype) == RAW]
    groups = group_arrays(specs, dtype)
    # A tensor's arrays are in the order of the groups: scales first, then weights.
    codes = [encode(_joined([patterns[i].pop(0) for i in group.tensors]), FORMATS[group.format]) for group in groups]
    layouts = [code.layout for code in codes]
    fields = [code.tails for code in codes] + [code.gaps for code in codes]
    tensors = digest_of(specs) if specs == known else [spec.to_json() for spec in specs]
    quotients = np.concatenate([np.zeros(0, np.uint64), *(code.quotients for code in codes)])
    return b"".join(
        [
            deflate_text(json.dumps([tensors, *columns(layouts)], separators=(",", ":")).encode()),
            deflate_text(b"".join(raw.tobytes() for raw in raws)),
            deflate([codes[i].symbols for i in _by_similarity(layouts)]),
            *(low.tobytes() for low, _ in fields),
            np.packbits(np.concatenate([*(bits for _, bits in fields), pack_quotients(quotients)])).tobytes(),
        ]
    )


def _joined(arrays: Sequence[BitPattern]) -> BitPattern:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@dataclass(frozen=True)
class Index:
    """The index of packed bytes: tensors, or their digest, and layout columns that are not checked yet."""

    tensors: list[TensorSpec] | str
    columns: list[object]
    codes: bytes

    @property
    def length(self) -> int:
        """Number of listed tensors or, if there is only a digest, of arrays."""
        first = self.columns[0] if self.columns else None
        listed = first if isinstance(self.tensors, str) else self.tensors
        return len(listed) if isinstance(listed, list) else 0

    def specs(self, known: list[TensorSpec] | None) -> list[TensorSpec]:
        """Return the listed tensors, or those `known` to the reader if their digest matches."""
        if not isinstance(self.tensors, str):
            return self.tensors
        if known is None:
            raise ValueError("it neither lists its tensors nor names a network that defines them")
        if self.tensors != digest_of(known):
            raise ValueError(
                "the network that it names has other tensors than it was saved with. If regrow has changed since, "
                "load it with the version that saved it"
            )
        return known


def read_index(data: bytes) -> Index:
    """Read the index of packed bytes; raise a ValueError that says what is wrong."""
    try:
        text, codes = inflate(data, _LARGEST_INDEX + _LARGEST_INDEX_RATIO * len(data))
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its index cannot be read: {error}") from None
    if not isinstance(stored, list) or not stored or not isinstance(stored[0], list | str):
        raise ValueError("its index does not start with its tensors")
    tensors = stored[0] if isinstance(stored[0], str) else specs_from_json(stored[0])
    return Index(tensors, stored[1:], codes)


def decode_tensors(index: Index, specs: Sequence[TensorSpec], dtype: str, largest: int) -> Iterator[StoredTensor]:
    """Invert `encode_tensors`, in any order; raise a ValueError if data is damaged or takes over `largest` bytes."""
    promised = sum(spec.dense_bytes for spec in specs)
    if promised > largest:
        raise ValueError(
            f"its tensors would take {promised:,} bytes, more than the {largest:,} allowed for a file of its "
            f"size. If you trust it, pass max_bytes={promised}"
        )
    forms = [spec.stored_as(dtype) for spec in specs]
    raw_bytes = [spec.dense_bytes if form == RAW else 0 for spec, form in zip(specs, forms, strict=True)]
    groups = group_arrays(specs, dtype)
    codes, raws = _read_codes(index.codes, layouts_from_columns(index.columns, groups), raw_bytes)
    arrays: dict[int, tuple[Array, ...]] = {}
    for i, form in enumerate(forms):
        if form == RAW:
            yield StoredTensor(specs[i], form, (), raws[i])
    for group, code in zip(groups, codes, strict=True):
        for i, array in zip(group.tensors, _arrays(group, code), strict=True):
            arrays[i] = (*arrays.get(i, ()), array)
            if len(arrays[i]) == (2 if forms[i] == "int8" else 1):
                yield StoredTensor(specs[i], forms[i], arrays.pop(i), raws[i])


def _arrays(group: ArrayGroup, code: Code) -> list[Array]:
    try:
        whole = decode(code)
    except ValueError as error:
        raise ValueError(f"{group.name!r}: {error}") from None
    if len(group.sizes) == 1:
        return [whole]
    return [SparseArray(None, piece) for piece in _pieces(whole.dense(code.layout.count), group.sizes)]


def _read_codes(
    data: bytes, layouts: Sequence[ArrayLayout], raw_bytes: Sequence[int]
) -> tuple[list[Code], list[Bytes]]:
    """Return the codes of all arrays, and the bytes of each raw tensor."""
    order = _by_similarity(layouts)
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


def _read_fields(data: bytes, layouts: Sequence[ArrayLayout]) -> tuple[tuple[list[Fields], list[Fields]], Bits]:
    """Return signs and mantissas of all arrays, low bits of all gaps, and the bits after them."""
    byte_sizes = [layout.field_bytes[kind] for kind in (0, 1) for layout in layouts]
    bit_sizes = [layout.field_bits[kind] for kind in (0, 1) for layout in layouts]
    low = _cut(_bytes(data[: sum(byte_sizes)]), byte_sizes)
    bits = np.unpackbits(_bytes(data[sum(byte_sizes) :]))
    if len(bits) < sum(bit_sizes):
        raise ValueError(f"its codes have {len(bits)} bits where the index implies {sum(bit_sizes)} and more")
    fields = list(zip(low, _pieces(bits, bit_sizes), strict=True))
    return (fields[: len(layouts)], fields[len(layouts) :]), bits[sum(bit_sizes) :]


def _by_similarity(layouts: Sequence[ArrayLayout]) -> list[int]:
    """Return the order of the exponents, in which arrays with similar symbol frequencies are neighbors.

    Sorted by symbol width, then by density: after pruning with a global threshold, layers of equal density have
    similar distributions of magnitudes above the threshold.
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


def group_arrays(specs: Sequence[TensorSpec], dtype: str) -> list[ArrayGroup]:
    """Group the arrays of all tensors in a file of `dtype`: groups of small arrays first, then each weight.

    Vectors with the same last part of their name, such as `running_mean`, have similar values and form one group. So
    do the scales of all int8 weights, which therefore come before their codes.
    """
    small: dict[tuple[str, str], list[tuple[int, int]]] = {}
    weights = []
    for i, spec in enumerate(specs):
        form, count = spec.stored_as(dtype), prod(spec.shape)
        if form == RAW:
            continue
        if len(spec.shape) < 2:
            small.setdefault((form, spec.name.rpartition(".")[2]), []).append((i, count))
            continue
        weights.append(ArrayGroup(spec.name, form, (i,), (count,)))
        if form == "int8":
            small.setdefault(("bf16", "scale"), []).append((i, spec.shape[0]))
    vectors = [ArrayGroup(kind, form, *zip(*arrays, strict=True)) for (form, kind), arrays in small.items()]
    return vectors + weights


def known_of(network: nn.Module) -> list[TensorSpec]:
    """Return the tensors of a network in float32, which a file that names the network does not have to list."""
    return [
        TensorSpec(name, torch.float32 if tensor.is_floating_point() else tensor.dtype, tuple(tensor.shape))
        for name, tensor in network.state_dict().items()
    ]


def digest_of(specs: Sequence[TensorSpec]) -> str:
    """Return a digest of a list of tensors, which detects that the reader's network has other tensors."""
    text = json.dumps([spec.to_json() for spec in specs])
    return blake2b(text.encode(), digest_size=4).hexdigest()


def columns(layouts: Sequence[ArrayLayout]) -> list[list[int]]:
    """Return the fields of all layouts by column, the order that compresses best."""
    return [[getattr(layout, name) for layout in layouts] for name in ArrayLayout.STORED]


def layouts_from_columns(stored: Sequence[object], groups: Sequence[ArrayGroup]) -> list[ArrayLayout]:
    """Read and check the layout of each group; raise a ValueError that says what is wrong."""
    numbers = [column for column in stored if isinstance(column, list) and all(type(one) is int for one in column)]
    if len(numbers) != len(stored) or len(stored) != len(ArrayLayout.STORED):
        raise ValueError(f"its index does not hold a list of whole numbers for each of {', '.join(ArrayLayout.STORED)}")
    if wrong := [len(column) for column in numbers if len(column) != len(groups)]:
        raise ValueError(f"its index describes {wrong[0]} arrays where the tensors have {len(groups)}")
    layouts = []
    for group, row in zip(groups, zip(*numbers, strict=True), strict=True):
        try:
            layouts.append(ArrayLayout(FORMATS[group.format], sum(group.sizes), *row))
        except ValueError as error:
            raise ValueError(f"{group.name!r}: {error}") from None
    return layouts


def specs_from_json(stored: list[object]) -> list[TensorSpec]:
    """Read and check a list of tensors; raise a ValueError that says what is wrong."""
    specs = [_spec(row) for row in stored]
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError("its index names a tensor twice")
    return specs


def _spec(row: object) -> TensorSpec:
    if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str):
        raise ValueError("a tensor of its index is not a name, a type and a shape")
    name, dtype, shape = row
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{name!r}: {shortened(dtype)} is not a tensor type; known types are {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"{name!r}: its shape is not a list of at most {_MOST_DIMENSIONS} sizes")
    if not all(type(size) is int and 0 <= size < _LARGEST_DIMENSION for size in shape):
        raise ValueError(f"{name!r}: its shape holds something that is not a size")
    if prod(max(size, 1) for size in shape) >= _LARGEST_TENSOR:
        raise ValueError(f"{name!r}: no tensor has the shape {shortened(shape)}")
    return TensorSpec(name, DTYPES[dtype], tuple(shape))
