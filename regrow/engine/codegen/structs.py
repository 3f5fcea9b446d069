"""The structures of the C files as ctypes, field by field, so that a plan is passed to C as it is."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import ClassVar

ABSENT, INPUT, OUTPUT = -1, -2, -3

Fields = list[tuple[str, type]]


class Planes(ctypes.Structure):
    """Channels of an image in the arena, in bytes."""

    _fields_: ClassVar[Fields] = [("at", c_int64), ("pitch", c_int32), ("row", c_int32)]


class Activate(ctypes.Structure):
    """An element-wise function."""

    _fields_: ClassVar[Fields] = [("kind", c_int32), ("low", c_float), ("high", c_float)]


class Conv(ctypes.Structure):
    """A sparse convolution and everything that is done while its result is in registers."""

    _fields_: ClassVar[Fields] = [
        *((name, Planes) for name in ("in_", "out", "residual", "tail")),
        *((name, c_int64) for name in ("entries", "starts", "bases", "order", "parts")),
        *((name, c_int64) for name in ("bias", "step", "scale", "shift", "mask")),
        *((name, c_int64) for name in ("scratch", "box", "tail_box")),
        *((name, c_int32) for name in ("rows", "cols", "channels", "groups", "blocks", "together", "down", "across")),
        *((name, c_int32) for name in ("stride_rows", "stride_cols", "share_channels", "followers", "band")),
        *((name, c_int32) for name in ("prefetch", "downwards", "kernel", "fills_boxes")),
        ("act", Activate),
        ("tail_act", Activate),
    ]


class Gather(ctypes.Structure):
    """A copy through a table."""

    _fields_: ClassVar[Fields] = [
        *((name, c_int64) for name in ("from_", "to", "table", "runs")),
        *((name, c_int32) for name in ("channels", "count", "from_pitch", "to_pitch", "run_count", "tables")),
        ("fill", c_float),
    ]


class Halo(ctypes.Structure):
    """The exchange of region edges."""

    _fields_: ClassVar[Fields] = [
        ("image", Planes),
        ("sides", c_int64),
        *((name, c_int32) for name in ("above", "below", "left", "right")),
        *((name, c_int32) for name in ("borrows_above", "borrows_below", "channels", "kernel")),
    ]


class Pool(ctypes.Structure):
    """Maximum or average over windows."""

    _fields_: ClassVar[Fields] = [
        ("in_", Planes),
        ("out", Planes),
        *((name, c_int64) for name in ("weights", "mask")),
        *((name, c_int32) for name in ("channels", "rows", "cols", "kernel_rows", "kernel_cols")),
        *((name, c_int32) for name in ("stride_rows", "stride_cols", "maximum")),
        ("scale", c_float),
    ]


class Mean(ctypes.Structure):
    """The mean of each channel."""

    _fields_: ClassVar[Fields] = [
        ("in_", Planes),
        ("out", c_int64),
        *((name, c_int32) for name in ("channels", "rows", "cols")),
        ("scale", c_float),
    ]


class Linear(ctypes.Structure):
    """A matrix product with one vector."""

    _fields_: ClassVar[Fields] = [
        *((name, c_int64) for name in ("in_", "out", "weights", "starts", "bias", "step")),
        *((name, c_int32) for name in ("inputs", "outputs", "dense")),
        ("act", Activate),
    ]


class Pointwise(ctypes.Structure):
    """An operation on pixels one by one."""

    _fields_: ClassVar[Fields] = [
        *((name, Planes) for name in ("a", "b", "out")),
        *((name, c_int64) for name in ("scale", "shift", "mask")),
        *((name, c_int32) for name in ("channels", "rows", "cols", "multiply", "broadcast", "features")),
        ("act", Activate),
    ]


class _Any(ctypes.Union):
    _fields_: ClassVar[Fields] = [
        ("conv", Conv),
        ("gather", Gather),
        ("halo", Halo),
        ("pool", Pool),
        ("mean", Mean),
        ("linear", Linear),
        ("pointwise", Pointwise),
    ]


class Op(ctypes.Structure):
    """One operation of a plan; `kind` is the position of its structure in the union."""

    _fields_: ClassVar[Fields] = [("kind", c_int32), ("exchange", c_int64), ("as_", _Any)]


class Borders(ctypes.Structure):
    """`struct borders` of shares.c: an image of which threads exchange rows."""

    _fields_: ClassVar[Fields] = [
        ("image", Planes),
        *((name, c_int64) for name in ("box", "sides")),
        *((name, c_int32) for name in ("above", "below", "left", "right", "channels", "rows", "cols")),
    ]


class Exchange(ctypes.Structure):
    """`struct exchange` of shares.c: the images of an operation of which they do."""

    _fields_: ClassVar[Fields] = [
        *((name, c_int64) for name in ("borrows", "lends", "lends_tail")),
        *((name, c_int32) for name in ("lent_above", "lent_below")),
    ]


class Job(ctypes.Structure):
    """`struct job` of team.c: a plan and what it is run on."""

    _fields_: ClassVar[Fields] = [
        *((name, c_void_p) for name in ("team", "run_one", "run_part", "ops", "constants", "arenas")),
        *((name, c_int64) for name in ("arena_bytes", "x_floats", "y_floats")),
        *((name, c_void_p) for name in ("x", "y", "seconds")),
        *((name, c_int32) for name in ("count", "first", "last", "divide", "clock")),
    ]


KINDS: dict[type[ctypes.Structure], tuple[int, str]] = {
    kind: (number, name) for number, (name, kind) in enumerate(_Any._fields_)
}


def as_op(operation: ctypes.Structure, exchange: int = ABSENT) -> Op:
    """Wrap one operation."""
    number, name = KINDS[type(operation)]
    return Op(number, exchange, _Any(**{name: operation}))
