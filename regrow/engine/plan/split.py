"""Work split by rows: bands of convolutions that fit the cache, and slices of the image, one per thread.

A band computes a few rows of several convolutions, so that large images do not leave the cache between them: one
convolution of any kind, and 1 x 1 convolutions after it, which need no pixels but those just written. In a ResNet that
is the 3 x 3 convolution of a bottleneck, the wide layer after it and the narrow one of the next bottleneck.

A slice is treated as an image: with the halo rows that its windows read, every layer computes the same slice of its
output. Each thread then reads data that it wrote itself, from its core's cache, and threads exchange a row or two after
each layer. Without slices, a second thread gains little on a small network.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from regrow.engine.codegen.structs import ABSENT, Exchange, HaloRows
from regrow.engine.frontend.graph import Graph, Node, Value
from regrow.engine.ops.conv import ConvStep
from regrow.engine.ops.move import GatherStep, HaloStep
from regrow.engine.ops.pool import Mean
from regrow.engine.plan.layout import PlaneLayout, halo_sides
from regrow.engine.plan.schedule import schedule
from regrow.engine.plan.steps import Buffer, Schedule, Step

if TYPE_CHECKING:
    from regrow.engine.plan.lower import Lowering

LARGE_CHAIN = 4 << 20
"""Bytes that a chain of convolutions must read and write to be computed in bands: far more than the L2 cache."""

BAND = 1 << 20
"""Maximum number of these bytes per band."""

MOST_WASTE = 1.5
"""Maximum ratio of computed pixels to image pixels; above it, rows are not split, because many lanes would be empty."""


# ---- bands


def in_bands(whole: Schedule) -> Schedule:
    """Mark the convolutions that are computed together, band by band."""
    steps: list[Step] = []
    for chain in _chains(whole.steps):
        band = _band(chain, whole.lanes)
        for number, step in enumerate(chain):
            if band and isinstance(step, ConvStep):
                step = replace(step, band=band, followers=0 if number else len(chain) - 1)
            steps.append(step)
    return replace(whole, steps=tuple(steps))


def _chains(steps: Iterable[Step]) -> Iterator[list[Step]]:
    chain: list[Step] = []
    for step in steps:
        if chain and not _follows(step, chain[0]):
            yield chain
            chain = []
        chain.append(step)
    if chain:
        yield chain


def _follows(step: Step, first: Step) -> bool:
    """Whether `step` reads only rows of its own band from the outputs of the chain."""
    if not isinstance(step, ConvStep) or not isinstance(first, ConvStep):
        return False
    planes, others = step.writes[0].planes, first.writes[0].planes
    same = planes is not None and others is not None and planes.grid == others.grid
    return same and step.node.window.single_pixel


def _band(chain: list[Step], lanes: int) -> int:
    """Return the rows of a band; 0 if the chain is better computed layer by layer."""
    planes = chain[0].writes[0].planes
    if len(chain) == 1 or planes is None:
        return 0
    touched: set[Buffer] = {buffer.whole for step in chain for buffer in (*step.reads, *step.writes)}
    size = sum(4 * lanes * b.channels * b.planes.pitch for b in touched if b.planes is not None)
    if size < LARGE_CHAIN:
        return 0
    return max(1, planes.grid.rows * BAND // size)


# ---- slices


def slice_schedule(graph: Graph, lanes: int, slices: int) -> Schedule | None:
    """Schedule one of several slices of the rows, or return None if the network cannot be split evenly.

    The rows of every image must be those of its input divided by the stride, and a global mean must follow the last
    image: one thread computes the layers after it. Images whose rows are exchanged must be wide enough for one row of
    regions.
    """
    if not _divisible(graph, slices):
        return None
    known: dict[Value, Value] = {}
    part = Graph(tuple(_cut(node, slices, known) for node in graph.nodes), graph.output)
    found = schedule(part, lanes, slices=slices)
    halo_buffers = _halo_buffers(found.steps, lanes)
    copies = any(isinstance(step, GatherStep) and step.reads[0].planes is not None for step in found.steps)
    if copies or not all(_suits(image.planes) for image in halo_buffers if image.planes is not None):
        return None  # a copy between layouts would need rows of other slices
    return replace(found, halo_buffers=halo_buffers)


def _suits(planes: PlaneLayout) -> bool:
    """Whether no window reaches beyond the neighboring slices, and few lanes are wasted."""
    near = max(planes.halo.top, planes.halo.bottom) <= planes.grid.rows
    return near and planes.grid.across * planes.grid.cols <= MOST_WASTE * planes.width


def _divisible(graph: Graph, slices: int) -> bool:
    images = [value for node in graph.nodes for value in node.outputs if value.pixels > 1]
    means = [number for number, node in enumerate(graph.nodes) if isinstance(node, Mean)]
    if len(means) != 1 or any(image.size[0] % slices or image.pixels == slices for image in images):
        return False  # a slice of one pixel would count as features
    before, after = graph.nodes[: means[0] + 1], graph.nodes[means[0] + 1 :]
    return all(node.splits_by_rows() for node in before) and _only_features(after)


def _only_features(nodes: Sequence[Node]) -> bool:
    return all(node.on_features and all(v.pixels == 1 for v in (*node.inputs, node.out)) for node in nodes)


def _cut(node: Any, slices: int, known: dict[Value, Value]) -> Any:
    """Return the node on one slice of every image that it reads or writes."""
    changed: dict[str, Any] = {}
    for field in fields(node):
        content = getattr(node, field.name)
        if isinstance(content, Value) and content.pixels > 1:
            channels, height, width = content.shape
            changed[field.name] = known.setdefault(content, Value(content.name, (channels, height // slices, width)))
        elif isinstance(content, Node):
            changed[field.name] = _cut(content, slices, known)
    return replace(node, **changed)


# ---- halo exchange between slices


def _halo_buffers(steps: Iterable[Step], lanes: int) -> dict[Buffer, Buffer]:
    """Return buffers for the rows of every image that the neighboring slices need."""
    sizes = {step.writes[0]: _sent_vectors(step.writes[0]) for step in steps if isinstance(step, HaloStep)}
    return {image: Buffer(vectors * lanes, (1, 1), None) for image, vectors in sizes.items() if vectors}


def _sent_vectors(image: Buffer) -> int:
    assert image.planes is not None
    halo, grid = image.planes.halo, image.planes.grid
    return image.channels * (halo.top + halo.bottom) * grid.cols


def exchange(step: Step, lowering: Lowering) -> int:
    """Add `struct exchange` of a step to the constants and return its offset; ABSENT if it exchanges nothing."""
    window = step.node.window if step.computes else None
    reads = window is not None and (window.halo.top or window.halo.bottom)
    out, second = _results(step)
    recv = _halo_rows(step.reads[0] if reads else None, lowering)
    send, send_second = _halo_rows(out, lowering), _halo_rows(second, lowering)
    if {recv, send, send_second} == {ABSENT}:
        return ABSENT
    sent = [b.planes.halo for b in (out, second) if b is not None and b in lowering.halo_buffers and b.planes]
    sent_above = max((halo.bottom for halo in sent), default=0)  # to the slice above, as its rows below
    sent_below = max((halo.top for halo in sent), default=0)
    return _put(Exchange(recv, send, send_second, sent_above, sent_below), lowering)


def _halo_rows(image: Buffer | None, lowering: Lowering) -> int:
    if image is None or image not in lowering.halo_buffers or image.planes is None:
        return ABSENT
    halo, grid = image.planes.halo, image.planes.grid
    columns = halo_sides(image.planes)[halo.top + halo.bottom :]
    rows = HaloRows(
        image=lowering.planes(image),
        buffer=lowering.halo_buffer(image),
        sides=lowering.constants.put(columns),
        above=halo.top,
        below=halo.bottom,
        left=halo.left,
        right=halo.right,
        channels=image.channels,
        rows=grid.rows,
        cols=grid.cols,
    )
    return _put(rows, lowering)


def _put(structure: ctypes.Structure, lowering: Lowering) -> int:
    return lowering.constants.put(np.frombuffer(bytes(structure), np.uint8))


def _results(step: Step) -> tuple[Buffer | None, Buffer | None]:
    """Return the output of a step, and the second output of a convolution."""
    if isinstance(step, ConvStep):
        return step.out, step.second_output
    return None if isinstance(step, HaloStep) else step.writes[0], None
