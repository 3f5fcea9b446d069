"""Describes each struct and enum once, and generates the ctypes class, the declaration in plan.h and C initializers.

A description maps field names to field types. Operations describe theirs in `regrow.engine.ops`; structs that
belong to no single operation are here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

ABSENT, INPUT, OUTPUT = -1, -2, -3
"""Offsets of operands that are not in the arena: none, the caller's input, the caller's output."""

AT_ONCE = 4
"""Number of fp32 weights that the kernels read at once."""


class ThreadMode(IntEnum):
    """What threads split: batches only, also the layers of images that are left over, or the rows of every image."""

    PER_IMAGE = 0
    PER_LAYER = 1
    PER_ROWS = 2


class ChannelSplit(IntEnum):
    """Which tiles have their channels split among threads: none, the remainder of an even division, or all."""

    NO_TILES = 0
    FEW_TILES = 1
    ALL_TILES = 2


class Shift(IntEnum):
    """Position of the neighbor that a halo is filled from, if there are two rows of four regions."""

    ANY_SHIFT = 0
    ABOVE = 1
    BELOW = 2
    LEFT = 3
    RIGHT = 4


@dataclass(frozen=True)
class FieldType:
    """A type as C declares it, with `{}` for the field's name, and as ctypes has it."""

    c: str
    python: Any


Fields = Mapping[str, FieldType]

I8, I32, I64 = (
    FieldType(f"int{8 * n}_t {{}}", t) for n, t in ((1, ctypes.c_int8), (4, ctypes.c_int32), (8, ctypes.c_int64))
)
U16, U32 = FieldType("uint16_t {}", ctypes.c_uint16), FieldType("uint32_t {}", ctypes.c_uint32)
F32 = FieldType("float {}", ctypes.c_float)
OFFSET = FieldType("int64_t {}", ctypes.c_int64)  # not I64: code that sets offsets finds them by this type
"""Bytes from the start of the arena or of the constants, or ABSENT."""


def pointer(declaration: str) -> FieldType:
    """A pointer, declared like `const float *{}`."""
    return FieldType(declaration, ctypes.c_void_p)


def array(kind: FieldType, count: int) -> FieldType:
    """A field with `count` values of a type."""
    return FieldType(f"{kind.c}[{count}]", kind.python * count)


def struct_of(name: str, fields: Fields, *, packed: bool = False) -> type[ctypes.Structure]:
    """Make the ctypes class of a description."""
    content: dict[str, Any] = {"__doc__": f"`struct {name}` of plan.h.", "fields": fields}
    if packed:
        content |= {"_pack_": 1, "_layout_": "ms"}
    content["_fields_"] = [(field, kind.python) for field, kind in fields.items()]
    return type(name, (ctypes.Structure,), content)


def nested(structure: type[ctypes.Structure]) -> FieldType:
    """A field that is a struct itself."""
    return FieldType(f"struct {structure.__name__} {{}}", structure)


Planes = struct_of("planes", {"at": OFFSET, "pitch": I32, "row": I32})
"""Channels of an image: bytes to the first pixel, from channel to channel and from row to row."""
PLANES = nested(Planes)

Activate = struct_of("activate", {"kind": I32, "low": F32, "high": F32})
"""An activation function, `enum activation`, and the bounds of a clamp."""
ACTIVATE = nested(Activate)

HaloRows = struct_of(
    "halo_rows",
    {
        "image": PLANES,
        "buffer": OFFSET,  # in the arena: rows for the slice above, then for the one below, by row, column, channel
        "sides": OFFSET,  # struct side: the columns of the halo left and right
        **dict.fromkeys(("above", "below", "left", "right", "channels", "rows", "cols"), I32),
    },
)
"""An image whose slices exchange rows: halo_exchange.c."""

Exchange = struct_of(
    "exchange",
    {
        "recv": OFFSET,  # struct halo_rows of the image that is read
        "send": OFFSET,  # and of those that are written
        "send_second": OFFSET,
        "sent_above": I32,  # rows at the slice's edges that the neighbors need
        "sent_below": I32,
    },
)
"""The rows that an operation receives from the neighboring slices and sends to them."""

RunArgs = struct_of(
    "run_args",
    {
        "pool": pointer("struct thread_pool *{}"),
        "run_one": pointer("void (*{})(struct thread_pool *, int part, int image)"),
        "run_part": pointer("void (*{})(struct thread_pool *, int part)"),
        "ops": pointer("const struct op *{}"),
        "constants": pointer("const char *{}"),
        "arenas": pointer("char *{}"),
        "arena_bytes": I64,  # of one thread
        "x_floats": I64,  # of one image
        "y_floats": I64,
        "x": pointer("const float *{}"),
        "y": pointer("float *{}"),
        "seconds": pointer("double *{}"),  # where the time of each operation is added, or NULL
        "count": I32,  # of operations
        "first": I32,  # the images of this round
        "last": I32,
        "mode": I32,  # enum thread_mode
        "clock": I32,  # for `seconds`
    },
)
"""A plan and the batch that it is run on: thread_pool.c."""

ENTRIES = {
    32: struct_of("entry", {"offset": U32, "value": F32}),
    16: struct_of("entry", {"offset": U16, "value": U16}),
    8: struct_of("entry", {"offset": U16, "value": I8}, packed=True),
}
"""A non-zero weight: the offset of the pixel that it multiplies, and its value.

By WEIGHT_BITS. The offset is in bytes for 32 bits, else in vectors (for features: in floats).
"""

FOUR = struct_of("four", {"offset": array(U32, AT_ONCE), "value": array(F32, AT_ONCE)})
"""Four fp32 weights of a channel, read together in fewer loads; a group stores those of its channels in turn."""

SHARED = (Planes, Activate, HaloRows, Exchange, RunArgs)


@cache
def side_struct(lanes: int) -> type[ctypes.Structure]:
    """`struct side`: one row or column of a halo, and the neighbor that it is filled from.

    The first fields are bytes from the first pixel, bytes from cell to cell, and the number of cells. `lanes` is the
    lane that each lane is filled from, `mask` is zero where the neighbor is outside the image.
    """
    vector = FieldType("ivec {}", ctypes.c_int32 * lanes)
    numbers = dict.fromkeys(("to", "from", "step", "cells", "shift"), I32)
    unused = array(I32, 11)  # vectors are aligned to at most 64 bytes
    return struct_of("side", {**numbers, "unused": unused, "lanes": vector, "mask": vector})


@cache
def op_struct(kernels: tuple[type[ctypes.Structure], ...]) -> type[ctypes.Structure]:
    """`struct op`: one call of a kernel. `kind` is the position of its struct in the union `as`."""
    union = type("as", (ctypes.Union,), {"_fields_": [(kernel.__name__, kernel) for kernel in kernels]})
    members = " ".join(f"struct {kernel.__name__} {kernel.__name__};" for kernel in kernels)
    fields = {
        "kind": I32,
        "exchange": OFFSET,  # struct exchange
        "as_": FieldType(f"union {{{{ {members} }}}} {{}}", union),
    }
    return struct_of("op", fields)


def enumeration(name: str, values: type[IntEnum]) -> str:
    """Return the enum as C declares it."""
    return f"enum {name} {{ {', '.join(f'{each.name} = {each.value}' for each in values)} }};"


def declaration(structure: type[ctypes.Structure]) -> str:
    """Return the struct as C declares it."""
    fields: Fields = vars(structure)["fields"]
    packed = " __attribute__((packed))" if getattr(structure, "_pack_", 0) else ""
    lines = (f"    {kind.c.format(name.rstrip('_'))};" for name, kind in fields.items())  # `as_`: `as` is a keyword
    return "\n".join([f"struct {structure.__name__} {{", *lines, f"}}{packed};"])


def plan_header(kernels: tuple[type[ctypes.Structure], ...], activations: Mapping[str, str]) -> str:
    """Return plan.h for the structs of all kernels and the C expressions of all activation functions, by name."""
    names = [kernel.__name__ for kernel in kernels]
    enums = {"thread_mode": ThreadMode, "channel_split": ChannelSplit, "shift": Shift}
    weights = [*ENTRIES.items(), (32, FOUR)]
    entries = "\n".join(f"#if WEIGHT_BITS == {bits}\n{declaration(entry)}\n#endif" for bits, entry in weights)
    return "\n".join(
        [
            "/* Structs of a plan, generated by regrow.engine.codegen.structs from the descriptions in Python. */",
            "#ifndef PLAN_H",
            "#define PLAN_H",
            '#include "vector.h"',
            "",
            f"enum {{ ABSENT = {ABSENT}, INPUT = {INPUT}, OUTPUT = {OUTPUT} }}; /* operands outside of the arena */",
            f"enum activation {{ NONE, {', '.join(name.upper() for name in activations)} }};",
            *(enumeration(name, values) for name, values in enums.items()),
            f"#define ACTIVATIONS(A) {' '.join(f'A({name.upper()}, {c})' for name, c in activations.items())}",
            "",
            "struct op;",
            "struct thread_pool;",
            entries,
            *(declaration(structure) for structure in (*SHARED, side_struct(4), *kernels)),
            "",
            f"enum kind {{ {', '.join(name.upper() for name in names)} }};",
            f"#define OPERATIONS(O) {' '.join(f'O({name.upper()}, {name})' for name in names)}",
            declaration(op_struct(kernels)),
            "#endif",
            "",
        ]
    )


def initializer(value: Any) -> str:
    """Return a C initializer that names the fields and leaves out `unused` ones, or a number."""
    if isinstance(value, ctypes.Array):
        return "{" + ", ".join(map(str, value)) + "}"
    if not isinstance(value, ctypes.Structure):
        return float_literal(value) if isinstance(value, float) else str(value)
    if type(value).__name__ == "op":
        name = value.as_._fields_[value.kind][0]
        return f"{{.kind = {name.upper()}, .as.{name} = {initializer(getattr(value.as_, name))}}}"
    fields = ((field[0], getattr(value, field[0])) for field in value._fields_ if field[0] != "unused")
    return "{" + ", ".join(f".{name} = {initializer(item)}" for name, item in fields) + "}"


def float_literal(value: float) -> str:
    """Return a C literal that is read back as the same float."""
    if math.isinf(value):
        return "__builtin_inff()" if value > 0 else "-__builtin_inff()"
    return f"{value:.9g}f" if "." in f"{value:.9g}" or "e" in f"{value:.9g}" else f"{value:.9g}.0f"
