"""The index of a packed file: which tensors it holds and how each array is coded; all sizes follow from it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from reprlib import repr as shortened

import torch
from torch import nn

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
_LARGEST_TENSOR = 1 << 60  # also one of no elements: torch multiplies its sizes


@dataclass(frozen=True)
class Spec:
    """What a tensor is: its name, type and shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def dense_bytes(self) -> int:
        """The bytes of the tensor in memory."""
        return prod(self.shape) * self.dtype.itemsize

    def stored_as(self, dtype: str) -> str:
        """The form that the tensor has in a file of `dtype`.

        Only weights, which have two dimensions or more, may lose precision; what is no float is stored raw.
        """
        if self.dtype not in EXACT or 0 in self.shape:
            return RAW
        exact = EXACT[self.dtype]
        lossy = tuple(FORMATS) if exact == "fp32" else ("int8",)
        return dtype if len(self.shape) > 1 and dtype in lossy else exact

    def to_json(self) -> list[object]:
        """The tensor as JSON holds it."""
        return [self.name, str(self.dtype).removeprefix("torch."), list(self.shape)]


@dataclass(frozen=True)
class Block:
    """Arrays of one format that are coded as one: each with the number of its tensor and its length."""

    name: str
    format: str
    tensors: tuple[int, ...]
    sizes: tuple[int, ...]


def arrange(specs: Sequence[Spec], dtype: str) -> list[Block]:
    """The arrays of all tensors in a file of `dtype`: the small ones, kind by kind, and then each weight.

    Vectors whose names end alike are one array, because their numbers are alike, and so are the scales of all
    int8 weights. Where a tensor has two arrays, its scales thus come first.
    """
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    weights = []
    for i, spec in enumerate(specs):
        form, count = spec.stored_as(dtype), prod(spec.shape)
        if form == RAW:
            continue
        if len(spec.shape) < 2:
            groups.setdefault((form, spec.name.rpartition(".")[2]), []).append((i, count))
            continue
        weights.append(Block(spec.name, form, (i,), (count,)))
        if form == "int8":
            groups.setdefault(("bf16", "scale"), []).append((i, spec.shape[0]))
    small = [Block(kind, form, *zip(*arrays, strict=True)) for (form, kind), arrays in groups.items()]
    return small + weights


def known_of(network: nn.Module) -> list[Spec]:
    """The tensors that a file need not list, because the network that it names has them; floats are of 32 bits."""
    return [
        Spec(name, torch.float32 if tensor.is_floating_point() else tensor.dtype, tuple(tensor.shape))
        for name, tensor in network.state_dict().items()
    ]


def digest(specs: Sequence[Spec]) -> str:
    """Stands for a list of tensors that the reader knows, and shows when it knows another one."""
    text = json.dumps([spec.to_json() for spec in specs])
    return blake2b(text.encode(), digest_size=4).hexdigest()


def columns(layouts: Sequence[Layout]) -> list[list[int]]:
    """The numbers of all layouts, like beside like, which deflates best."""
    return [[getattr(layout, name) for layout in layouts] for name in Layout.STORED]


def layouts_from_columns(stored: Sequence[object], blocks: Sequence[Block]) -> list[Layout]:
    """Read the layout of each block, believing nothing: a ValueError says what is wrong."""
    numbers = [column for column in stored if isinstance(column, list) and all(type(one) is int for one in column)]
    if len(numbers) != len(stored) or len(stored) != len(Layout.STORED):
        raise ValueError(f"its index does not hold a list of whole numbers for each of {', '.join(Layout.STORED)}")
    if wrong := [len(column) for column in numbers if len(column) != len(blocks)]:
        raise ValueError(f"its index describes {wrong[0]} arrays where the tensors have {len(blocks)}")
    layouts = []
    for block, row in zip(blocks, zip(*numbers, strict=True), strict=True):
        try:
            layouts.append(Layout(FORMATS[block.format], sum(block.sizes), *row))
        except ValueError as error:
            raise ValueError(f"{block.name!r}: {error}") from None
    return layouts


def specs_from_json(stored: list[object]) -> list[Spec]:
    """Read a list of tensors, believing nothing: a ValueError says what is wrong."""
    specs = [_spec(row) for row in stored]
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError("its index names a tensor twice")
    return specs


def _spec(row: object) -> Spec:
    if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str):
        raise ValueError("a tensor of its index is not a name, a type and a shape")
    name, dtype, shape = row
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{name!r}: {shortened(dtype)} is no type of tensors; known are {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"{name!r}: its shape is not a list of at most {_MOST_DIMENSIONS} sizes")
    if not all(type(size) is int and 0 <= size < _LARGEST_DIMENSION for size in shape):
        raise ValueError(f"{name!r}: its shape holds something that is not a size")
    if prod(max(size, 1) for size in shape) >= _LARGEST_TENSOR:
        raise ValueError(f"{name!r}: no tensor has the shape {shortened(shape)}")
    return Spec(name, DTYPES[dtype], tuple(shape))
