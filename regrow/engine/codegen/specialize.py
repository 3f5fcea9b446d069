"""Kernels for the layers of one network, with sizes, strides and absent operands compiled in.

In very sparse layers, loading strides and branching cost as much as the multiply-adds; these kernels have both compiled
in. They also write the halo of their output from registers, and the rows that other threads need. Operands may lie
anywhere in memory, so layers of the same shape use one kernel, and so do networks with other weights.

For a 3 x 3 convolution of 32 x 32 pixels in 8 lanes, the generated C is one entry of the macro `VARIANTS`:

    V(1, {.op = {.x = {.at = 0, .pitch = 5824, .row = 320}, .out = {...}, .residual = {.at = -1, ...}, ...,
          .rows = 16, .cols = 8, .tile_channels = 1, .tile_rows = 1, .tile_cols = 8, ...}, .writes_edges = 1, ...})
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Any

from regrow.engine.codegen.build import Kernels
from regrow.engine.codegen.structs import ABSENT, OFFSET, initializer, side_struct
from regrow.engine.ops.activations import RELU
from regrow.engine.ops.base import kind_of
from regrow.engine.plan.lower import Plan
from regrow.engine.plan.tiles import Shape, Tile, shapes_of

MOST_SIDES = 8
"""Maximum number of rows and columns of a halo with a specialized kernel; above it, the copies dominate the time."""

_HALO_BUFFERS = ("halo_buffer", "second_halo_buffer")
_OUTER = ("groups", "channel_split", "followers", "band", "variant", "fills_halo_buffers")
"""Fields that are not compiled in: the number of channel groups, and those that only the outer loops read."""


def specialize(plan: Plan) -> tuple[Plan, Kernels]:
    """Return the plan with its own kernel for every shape of layer, and these kernels."""
    conv_kind, halo_kind = kind_of("conv"), kind_of("halo")
    ops = list(type(plan.ops).from_buffer_copy(plan.ops))
    variants: dict[str, int] = {}
    halos: dict[str, int] = {}
    shapes: set[Shape] = {(1, 1, 1, 1)}
    written: set[int] = set()
    for number, op in enumerate(ops):
        if op.kind == conv_kind:
            conv = op.as_.conv
            edges = _edges(number, ops, plan)
            written |= edges.keys()
            shapes |= _remaining(conv)
            conv.variant = variants.setdefault(_variant(conv, edges.values()), len(variants) + 1)
            halos_written = [ops[place].as_.halo for place in edges]
            filled = sum(bool(halo.recv_above or halo.recv_below) for halo in halos_written)
            conv.fills_halo_buffers = filled == sum(getattr(conv, name) != ABSENT for name in _HALO_BUFFERS)
        elif op.kind == halo_kind and number not in written:
            sides = _sides(op.as_.halo, plan)
            if 0 < len(sides) <= MOST_SIDES:
                text = f"{op.as_.halo.image.pitch}, {len(sides)}, {', '.join(sides)}"
                op.as_.halo.variant = halos.setdefault(text, len(halos) + 1)
    kept = [number for number in range(len(ops)) if number not in written]
    own_plan = replace(
        plan,
        ops=(plan.ops._type_ * len(kept))(*(ops[number] for number in kept)),
        labels=tuple(plan.labels[number] for number in kept),
    )
    return own_plan, Kernels(tuple(sorted(shapes)), tuple(variants), tuple(halos))


def separate_halos(plan: Plan, number: int) -> list[int]:
    """Return the halos after convolution `number` of a plan that its specialized kernel would not write itself."""
    ops = list(plan.ops)
    written = _edges(number, ops, plan)
    return [after for after, _ in _halos_after(number, ops) if after not in written]


def _variant(conv: Any, edges: Iterable[str]) -> str:
    """Return `struct variant`: everything about a convolution but the addresses of its operands."""
    variant = type(conv).from_buffer_copy(conv)
    addresses = [name for name, kind in conv.fields.items() if kind is OFFSET]
    for name in (*addresses, *_OUTER):
        setattr(variant, name, 0)
    variant.mask = ABSENT if conv.mask == ABSENT else 0
    for planes in (variant.x, variant.out, variant.residual, variant.second):
        planes.at = ABSENT if planes.at == ABSENT else 0
    written = ", ".join(edges)
    along = f", .writes_edges = 1, .edges = {{{written}}}" if written else ""
    return f"{{.op = {initializer(variant)}{along}}}"


def _remaining(conv: Any) -> set[Shape]:
    """Return the general kernels for the remaining rows and columns that do not fill a tile."""
    tile = Tile(conv.tile_channels, conv.tile_rows, conv.tile_cols)
    return set() if _divides(conv) else set(shapes_of(tile, conv.stride_cols))


def _divides(conv: Any) -> bool:
    """Whether tiles cover the region, and every band, without a remainder."""
    return not (conv.rows % conv.tile_rows or conv.band % conv.tile_rows or conv.cols % conv.tile_cols)


def _edges(number: int, ops: list[Any], plan: Plan) -> dict[int, str]:
    """Return the halos that a convolution can write itself, by their number in the plan, as `struct edges`.

    Its tiles must be as wide as the region, and its activation must be computed in registers.
    """
    conv = ops[number].as_.conv
    slow = max(conv.act.kind, conv.second_act.kind) > RELU.struct.kind
    if not _divides(conv) or conv.tile_cols != conv.cols or conv.band or slow:
        return {}
    found = {}
    for after, halo in _halos_after(number, ops):
        if max(halo.above, halo.below, halo.left, halo.right, halo.recv_above, halo.recv_below) > 1:
            continue
        for place, planes in enumerate((conv.out, conv.second)):
            if planes.at == halo.image.at and halo.channels == conv.channels:
                found[after] = f"[{place}] = {_edge_list(halo, plan)}"
    return found


def _halos_after(number: int, ops: list[Any]) -> Iterator[tuple[int, Any]]:
    halo_kind = kind_of("halo")
    after = enumerate(ops[number + 1 :], number + 1)
    return ((place, op.as_.halo) for place, op in takewhile(lambda item: item[1].kind == halo_kind, after))


def _edge_list(halo: Any, plan: Plan) -> str:
    sides = iter(_sides(halo, plan))
    names = (name for name in ("above", "below", "left", "right") if getattr(halo, name))
    received = (f".{name} = {getattr(halo, name)}" for name in ("recv_above", "recv_below"))
    return "{" + ", ".join((*(f".{name} = {next(sides)}" for name in names), *received)) + "}"


def _sides(halo: Any, plan: Plan) -> list[str]:
    """Return the sides of a halo, each as `struct side`."""
    side = side_struct(plan.lanes)
    count, size = halo.above + halo.below + halo.left + halo.right, ctypes.sizeof(side)
    table = plan.constants[halo.sides : halo.sides + count * size].tobytes()
    return [initializer(side.from_buffer_copy(table, number * size)) for number in range(count)]
