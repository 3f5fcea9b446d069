"""Kernels made for the layers of one network, in which the compiler knows every distance and what is absent.

In a very sparse layer a channel takes a few dozen multiply-adds, and reading distances and asking what there is to do
around them takes as long as a third of that. Where operands lie is still up to the plan: layers of the same form share
a kernel, and so do networks with other weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from regrow.deploy.engine import native
from regrow.deploy.engine.build import tile_list
from regrow.deploy.engine.c_text import initializer
from regrow.deploy.engine.layout import SIDE_NUMBERS, side_bytes
from regrow.deploy.engine.plan import Plan
from regrow.deploy.engine.tiles import Shape, Tile, shapes_of

_PLACES = ("entries", "starts", "bases", "order", "parts", "bias", "step", "scale", "shift", "scratch")
_DRIVEN = ("share_channels", "followers", "band", "fitted")
"""What only the loops around the kernels read."""

MOST_SIDES = 8
"""A wider halo moves so much that knowing the distances no longer matters."""


def fitted(plan: Plan) -> tuple[Plan, str]:
    """The plan with a kernel of its own for every form of layer, and the definitions that kernels.c makes them from."""
    ops = type(plan.ops).from_buffer_copy(plan.ops)
    forms: dict[str, int] = {}
    halos: dict[str, int] = {}
    shapes: set[Shape] = {(1, 1, 1, 1)}
    for op in ops:
        if op.kind == native.KINDS[native.Conv][0]:
            conv = op.as_.conv
            shapes |= _edges(conv)
            conv.fitted = forms.setdefault(initializer(_form(conv)), len(forms) + 1)
        elif op.kind == native.KINDS[native.Halo][0] and op.as_.halo.count <= MOST_SIDES:
            halo = op.as_.halo
            halo.fitted = halos.setdefault(_sides(halo, plan), len(halos) + 1)
    lists = [tile_list(shapes), _list("FITTED", forms), _list("HALOS", halos)]
    return replace(plan, ops=ops), "\n".join(lists)


def _list(name: str, items: Iterable[str]) -> str:
    return " \\\n".join([f"#define {name}(F)", *(f"    F({number}, {item})" for number, item in enumerate(items, 1))])


def _form(conv: native.Conv) -> native.Conv:
    """Everything about a convolution but where its operands lie."""
    form = native.Conv.from_buffer_copy(conv)
    for name in (*_PLACES, *_DRIVEN):
        setattr(form, name, 0)
    form.mask = native.ABSENT if conv.mask == native.ABSENT else 0
    for planes in (form.in_, form.out, form.residual, form.tail):
        planes.at = native.ABSENT if planes.at == native.ABSENT else 0
    return form


def _edges(conv: native.Conv) -> set[Shape]:
    """The tiles for rows and columns that are left over: these are few, and kernels for any layer do."""
    tile = Tile(conv.together, conv.down, conv.across)
    return set(shapes_of(tile, conv.stride_cols)) if conv.rows % tile.down or conv.cols % tile.across else set()


def _sides(halo: native.Halo, plan: Plan) -> str:
    size = side_bytes(plan.lanes)
    table = np.frombuffer(plan.constants[halo.sides : halo.sides + halo.count * size].tobytes(), "<i4")
    sides = []
    for numbers in table.reshape(halo.count, -1):
        to, start, step, cells, shift = numbers[:5]
        lanes, mask = np.split(numbers[SIDE_NUMBERS:], 2)
        sides.append(
            f"{{.to = {to}, .from = {start}, .step = {step}, .cells = {cells}, .shift = {shift}, "
            f".lanes = {_vector(lanes)}, .mask = {_vector(mask)}}}"
        )
    return f"{halo.image.pitch}, {halo.count}, {', '.join(sides)}"


def _vector(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(str(number) for number in numbers) + "}"
