"""Converts an engine plan to the data of a WebAssembly module: operations, constants and packed weights.

This module and `templates/template.c` know the engine's structures; the rest of the export does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regrow.engine.codegen.build import Kernels, joined_source, operation_files
from regrow.engine.codegen.structs import I32, U32, declaration, enumeration, struct_of
from regrow.engine.ops.base import kernels as registered_kernels
from regrow.engine.plan.lower import Plan
from regrow.engine.plan.tiles import SHAPES, most_sums
from regrow.engine.plan.weights import BITS, Format

LANES = 4
"""Floats in a WebAssembly vector."""

_ENTRY = np.dtype("<u4")


@dataclass(frozen=True)
class ModuleData:
    """The contents of a module's memory, and the functions it calls.

    `constants` has zeros where weights belong; the template's start function writes them there from `packed`.
    """

    operations: bytes
    count: int
    constants: bytes
    packed: bytes
    arena_bytes: int
    kernels: frozenset[str]


def template_source() -> str:
    """Return the C source of the template: the engine's kernels for every tile that fits, and `template.c`."""
    tiles = tuple(shape for shape in SHAPES if shape[0] * shape[1] * shape[2] <= most_sums(LANES))
    own = resources.files("regrow.export").joinpath("templates", "template.c").read_text(encoding="utf-8")
    # Not inlined, so that a module can leave out functions that it does not call.
    engine = joined_source(*operation_files(), attributes="noinline, unused")
    stored = [enumeration("packing", Packing), declaration(Packed)]
    return "\n".join([f"#define LANES {LANES}", Kernels(tiles).definitions(), engine, *stored, own])


def source_digest() -> str:
    """Return the digest of the template's source. The template contains the digest of the source it was built from."""
    return hashlib.sha256(template_source().encode()).hexdigest()


def module_data(plan: Plan, weights: Format) -> ModuleData:
    """Return what a module needs to run `plan` (of fp32 kernels) with its weights stored as `weights`."""
    constants = np.array(plan.constants)
    packed: dict[int, bytes] = {}
    for op in plan.ops:
        for entries, size, record in _weights(op, constants, weights):
            if entries not in packed:
                packed[entries] = record
                constants[entries : entries + size] = 0
    return ModuleData(
        operations=bytes(plan.ops),
        count=len(plan.ops),
        constants=constants.tobytes(),
        packed=b"".join(packed.values()),
        arena_bytes=plan.arena_bytes,
        kernels=frozenset(kernel for op in plan.ops for kernel in _kernels(op)),
    )


def is_kernel(function: str) -> bool:
    """Return whether a module can leave out this function of the template if it does not call it."""
    return function.startswith("tiles_") or function in {f"run_{kernel.name}" for kernel in registered_kernels()}


def _kernels(op: Any) -> Iterator[str]:
    """Yield the names of the functions that an operation calls."""
    name = _kernel_name(op)
    yield f"run_{name}"
    if name != "conv":
        return
    conv = op.as_.conv
    heights = {conv.band, conv.rows % conv.band} if conv.band else {conv.rows}
    down = {conv.tile_rows} | ({1} if any(height % conv.tile_rows for height in heights) else set())
    across = {conv.tile_cols} | ({1} if conv.cols % conv.tile_cols else set())
    for rows in down:
        for cols in across:
            yield f"tiles_{conv.tile_channels}_{rows}_{cols}_{1 if cols == 1 else conv.stride_cols}"


def _kernel_name(op: Any) -> str:
    kernel: int = op.kind
    return registered_kernels()[kernel].name


def _weights(op: Any, constants: NDArray[np.uint8], kind: Format) -> Iterator[tuple[int, int, bytes]]:
    """Yield the offset of an operation's weights in the constants, their size in bytes, and the packed weights."""
    name = _kernel_name(op)
    if name == "conv":
        rows = _conv_rows(op.as_.conv, constants)
    elif name == "linear":
        rows = _dense_rows(op.as_.linear, constants) if op.as_.linear.dense else _linear_rows(op.as_.linear, constants)
    else:
        return
    if len(rows.values):
        yield rows.entries, rows.size, rows.record(kind)


class Packing(IntEnum):
    """In which order the kernel of a layer reads its weights."""

    SPARSE_CONV = 0
    SPARSE_LINEAR = 1
    DENSE_LINEAR = 2


Packed = struct_of(
    "packed",
    {"packing": I32, "bits": I32, "entries": U32, "starts": U32}
    | dict.fromkeys(("groups", "together", "groups_per_block", "pitch", "taps", "length", "count", "gap_bytes"), I32),
)
"""The header of a layer's stored weights; template.c describes the parts that follow it.

`entries` and `starts` are in the constants: where the weights go, and where each group of `together` rows starts.
`pitch` is the bytes from one input channel to the next, `length` that of a row in which no weight is missing.
"""


@dataclass(frozen=True)
class _Rows:
    """The weights of a layer, row by row.

    `row` is the row of each weight, and `place` its position in the row if no weight were missing, or -1 for zeros that
    pad a row. `channel` is the output channel of each row: rows of one channel share the scale of 8-bit weights.
    """

    packing: Packing
    entries: int
    size: int
    starts: int
    groups: int
    together: int
    groups_per_block: int
    pitch: int
    taps: NDArray[np.int64]
    length: int
    row: NDArray[np.int64]
    place: NDArray[np.int64]
    values: NDArray[np.float32]
    channel: NDArray[np.int64]

    def record(self, kind: Format) -> bytes:
        """Return the bytes that the template's start function reads."""
        scales, stored = self._stored(kind)
        gaps = b"" if self.packing is Packing.DENSE_LINEAR else self._gaps()
        same = ("packing", "entries", "starts", "groups", "together", "groups_per_block", "pitch", "length")
        counts = {"bits": BITS[kind], "taps": len(self.taps), "count": len(self.values), "gap_bytes": len(gaps)}
        header = Packed(**{name: getattr(self, name) for name in same}, **counts)
        parts = (bytes(header), self.taps.astype("<i4").tobytes(), scales.tobytes(), stored.tobytes(), gaps)
        return b"".join(map(_padded, parts))

    def _stored(self, kind: Format) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the scale of each row (of int8 weights), and the values as they are stored."""
        if kind != "int8":
            return np.zeros(0, "<f4"), self.values.astype("<f4" if kind == "fp32" else "<f2")
        largest = np.zeros(int(self.channel.max()) + 1, np.float32)
        np.maximum.at(largest, self.channel[self.row], np.abs(self.values))
        scales = np.where(largest > 0, largest / np.float32(127), np.float32(1))[self.channel].astype("<f4")
        return scales, np.rint(self.values / scales[self.row]).astype(np.int8)

    def _gaps(self) -> bytes:
        """Return the distance of each weight from the one before it in its row; empty if no weight is missing."""
        first = np.diff(self.row, prepend=-1) > 0
        place = np.where(self.place < 0, 0, self.place)
        # A zero that pads a row stays at the place of the last weight.
        place = np.maximum.accumulate(place + self.row * self.length) - self.row * self.length
        gaps = place - np.where(first, -1, np.concatenate([[-1], place[:-1]]))
        if np.any(gaps < 0):
            raise AssertionError("the engine's weights are not in the order that template.c expects")
        if np.all(gaps == 1):
            return b""
        full, rest = np.divmod(gaps, 255)
        coded = np.full(int(full.sum()) + len(gaps), 255, np.uint8)
        coded[np.cumsum(full + 1) - 1] = rest
        return coded.tobytes()


def _conv_rows(conv: Any, constants: NDArray[np.uint8]) -> _Rows:
    groups, together = conv.groups * conv.blocks, conv.tile_channels
    starts = constants[conv.starts :].view("<i4")[: groups + 1].astype(np.int64)
    lengths = np.repeat(np.diff(starts), together)
    row = np.repeat(np.arange(len(lengths)), lengths)
    k = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    group, member = row // together, row % together
    # The weights of each member are stored by fours, offsets first (`struct four`); the rest are stored one by one.
    in_fours = k < lengths[row] // 4 * 4
    fours, singly = 8 * (k // 4 * together + member) + k % 4, 2 * (k * together + member)
    at = 2 * starts[group] * together + np.where(in_fours, fours, singly)
    size = 8 * int(starts[-1]) * together
    words = constants[conv.entries : conv.entries + size].view(_ENTRY)
    offset, values = words[at].astype(np.int64), words[at + np.where(in_fours, 4, 1)].view("<f4")
    source, within = np.divmod(offset, conv.x.pitch)
    taps = np.unique(within[values != 0])
    place = source * max(1, len(taps)) + np.searchsorted(taps, within)
    length = int(place[values != 0].max(initial=0)) + 1
    backwards = group % conv.groups % 2 == 1  # as in template.c
    place = np.where(values == 0, -1, np.where(backwards, length - 1 - place, place))
    channel = np.arange(groups) % conv.groups
    if together > 1:
        channel = constants[conv.order :].view("<i4")[: groups * together].astype(np.int64)
    return _Rows(
        Packing.SPARSE_CONV, conv.entries, size, conv.starts, groups, together, conv.groups, conv.x.pitch, taps,
        length, row, place, values, channel,
    )  # fmt: skip


def _linear_rows(linear: Any, constants: NDArray[np.uint8]) -> _Rows:
    starts = constants[linear.starts :].view("<i4")[: linear.outputs + 1].astype(np.int64)
    row = np.repeat(np.arange(linear.outputs), np.diff(starts))
    size = 8 * int(starts[-1])
    entries = constants[linear.weights : linear.weights + size].view([("offset", "<u4"), ("value", "<f4")])
    place = entries["offset"].astype(np.int64) // 4
    channel = np.arange(linear.outputs)
    return _Rows(
        Packing.SPARSE_LINEAR, linear.weights, size, linear.starts, linear.outputs, 1, linear.outputs, 4,
        np.zeros(1, np.int64), linear.inputs, row, place, entries["value"], channel,
    )  # fmt: skip


def _dense_rows(linear: Any, constants: NDArray[np.uint8]) -> _Rows:
    blocks, inputs = -(-linear.outputs // LANES), linear.inputs
    size = 4 * blocks * inputs * LANES
    vectors = constants[linear.weights : linear.weights + size].view("<f4").reshape(blocks, inputs, LANES)
    values = vectors.transpose(0, 2, 1).reshape(-1, inputs)[: linear.outputs].reshape(-1)
    row, place = np.divmod(np.arange(len(values)), inputs)
    return _Rows(
        Packing.DENSE_LINEAR, linear.weights, size, 0, linear.outputs, 1, linear.outputs, 4, np.zeros(1, np.int64),
        inputs, row, place, values, np.arange(linear.outputs),
    )  # fmt: skip


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
