"""Kernels made for the layers of one network, in which the compiler knows every distance and what is absent.

In a very sparse layer a channel takes a few dozen multiply-adds, beside which it counts that distances are read and
questions asked. These kernels also write the halo along with the region, from registers, and rows that other threads
need into their boxes.
Where operands lie is still up to the plan: layers of the same form share a kernel, and so do networks with other
weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile

import numpy as np

from regrow.engine.codegen import structs as native
from regrow.engine.codegen.build import Kernels
from regrow.engine.codegen.c_text import initializer
from regrow.engine.frontend.graph import Act
from regrow.engine.plan.layout import SIDE_NUMBERS, side_bytes
from regrow.engine.plan.lower import Plan
from regrow.engine.plan.tiles import Shape, Tile, shapes_of

CONV, HALO = native.KINDS[native.Conv][0], native.KINDS[native.Halo][0]
MOST_SIDES = 8
"""A wider halo moves so much that knowing the distances no longer matters."""

_PLACES = ("entries", "starts", "bases", "order", "parts", "groups", "bias", "step", "scale", "shift", "scratch")
_BOXES = ("box", "tail_box")
_DRIVEN = ("share_channels", "followers", "band", "kernel", "fills_boxes")
"""What only the loops around the kernels read."""


def fitted(plan: Plan) -> tuple[Plan, Kernels]:
    """The plan with a kernel of its own for every form of layer, and these kernels."""
    ops = list(type(plan.ops).from_buffer_copy(plan.ops))
    forms: dict[str, int] = {}
    halos: dict[str, int] = {}
    shapes: set[Shape] = {(1, 1, 1, 1)}
    written: set[int] = set()
    for number, op in enumerate(ops):
        if op.kind == CONV:
            conv = op.as_.conv
            edges = _edges(number, ops, plan)
            written |= edges.keys()
            shapes |= _remaining(conv)
            conv.kernel = forms.setdefault(_form(conv, edges.values()), len(forms) + 1)
            conv.fills_boxes = _boxes_filled(ops[place].as_.halo for place in edges) == _boxes(conv)
        elif op.kind == HALO and number not in written:
            sides = _sides(op.as_.halo, plan)
            if 0 < len(sides) <= MOST_SIDES:
                text = f"{op.as_.halo.image.pitch}, {len(sides)}, {', '.join(sides)}"
                op.as_.halo.kernel = halos.setdefault(text, len(halos) + 1)
    kept = [number for number in range(len(ops)) if number not in written]
    own_plan = replace(
        plan,
        ops=(native.Op * len(kept))(*(ops[number] for number in kept)),
        labels=tuple(plan.labels[number] for number in kept),
    )
    return own_plan, Kernels(tuple(sorted(shapes)), tuple(forms), tuple(halos))


def _boxes_filled(halos: Iterable[native.Halo]) -> int:
    return sum(bool(halo.borrows_above or halo.borrows_below) for halo in halos)


def _boxes(conv: native.Conv) -> int:
    return sum(getattr(conv, name) != native.ABSENT for name in _BOXES)


def separate_halos(plan: Plan, number: int) -> list[int]:
    """The halos after convolution `number` of the plan's operations that no kernel of its own would write along."""
    ops = list(plan.ops)
    written = _edges(number, ops, plan)
    return [after for after, _ in _halos_after(number, ops) if after not in written]


def _form(conv: native.Conv, edges: Iterable[str]) -> str:
    """`struct form`: everything about a convolution but where its operands lie."""
    form = native.Conv.from_buffer_copy(conv)
    for name in (*_PLACES, *_BOXES, *_DRIVEN):
        setattr(form, name, 0)
    form.mask = native.ABSENT if conv.mask == native.ABSENT else 0
    for planes in (form.in_, form.out, form.residual, form.tail):
        planes.at = native.ABSENT if planes.at == native.ABSENT else 0
    written = ", ".join(edges)
    along = f", .writes_edges = 1, .edges = {{{written}}}" if written else ""
    return f"{{.op = {initializer(form)}{along}}}"


def _remaining(conv: native.Conv) -> set[Shape]:
    """The tiles for rows and columns that are left over: these are few, and kernels for any layer do."""
    tile = Tile(conv.together, conv.down, conv.across)
    return set() if _divides(conv) else set(shapes_of(tile, conv.stride_cols))


def _divides(conv: native.Conv) -> bool:
    """Whether nothing is left over, also of the bands in which chained layers run."""
    return not (conv.rows % conv.down or conv.band % conv.down or conv.cols % conv.across)


def _edges(number: int, ops: list[native.Op], plan: Plan) -> dict[int, str]:
    """The halos that a convolution can write along, by their number among the operations, as `struct edges`.

    Only tiles as wide as the region do so, and those whose last step is in registers.
    """
    conv = ops[number].as_.conv
    if not _divides(conv) or conv.across != conv.cols or conv.band or max(conv.act.kind, conv.tail_act.kind) > Act.RELU:
        return {}
    found = {}
    for after, halo in _halos_after(number, ops):
        if max(halo.above, halo.below, halo.left, halo.right, halo.borrows_above, halo.borrows_below) > 1:
            continue
        for place, planes in enumerate((conv.out, conv.tail)):
            if planes.at == halo.image.at and halo.channels == conv.channels:
                found[after] = f"[{place}] = {_edge_list(halo, plan)}"
    return found


def _halos_after(number: int, ops: list[native.Op]) -> Iterator[tuple[int, native.Halo]]:
    after = enumerate(ops[number + 1 :], number + 1)
    return ((place, op.as_.halo) for place, op in takewhile(lambda item: item[1].kind == HALO, after))


def _edge_list(halo: native.Halo, plan: Plan) -> str:
    sides = iter(_sides(halo, plan))
    names = (name for name in ("above", "below", "left", "right") if getattr(halo, name))
    borrowed = (f".{name} = {getattr(halo, name)}" for name in ("borrows_above", "borrows_below"))
    return "{" + ", ".join((*(f".{name} = {next(sides)}" for name in names), *borrowed)) + "}"


def _sides(halo: native.Halo, plan: Plan) -> list[str]:
    """The sides of a halo, each as `struct side`."""
    count, size = halo.above + halo.below + halo.left + halo.right, side_bytes(plan.lanes)
    table = np.frombuffer(plan.constants[halo.sides : halo.sides + count * size].tobytes(), "<i4")
    texts = []
    for numbers in table.reshape(count, size // 4):
        to, start, step, cells, shift = numbers[:5]
        lanes, mask = np.split(numbers[SIDE_NUMBERS:], 2)
        texts.append(
            f"{{.to = {to}, .from = {start}, .step = {step}, .cells = {cells}, .shift = {shift}, "
            f".lanes = {_vector(lanes)}, .mask = {_vector(mask)}}}"
        )
    return texts


def _vector(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(str(number) for number in numbers) + "}"
