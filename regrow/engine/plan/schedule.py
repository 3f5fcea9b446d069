"""Turns a graph into steps on buffers: chooses the layout of every value and inserts the copies between layouts."""

from __future__ import annotations

import math

import numpy as np

from regrow.engine.frontend.graph import Graph, Node, Value
from regrow.engine.ops.base import NodeStep
from regrow.engine.ops.move import GatherStep, HaloStep
from regrow.engine.ops.reshape import Concat
from regrow.engine.plan.layout import Grid, Halo, PlaneLayout, Window, choose_grid
from regrow.engine.plan.steps import Buffer, Schedule, Step

Wanted = tuple[Value, Grid, float]
"""A value, the grid that it is read in, and the number in its padding."""


def schedule(graph: Graph, lanes: int, *, slices: int = 1) -> Schedule:
    """Choose layouts for vectors of `lanes` floats and list the steps.

    With several `slices`, the graph is that of one slice of the rows of the caller's image.
    """
    plan = Scheduler(graph, lanes, slices)
    for node in graph.nodes:
        node.schedule(plan)
    plan.write_output(graph.output)
    return Schedule(tuple(plan.steps), lanes, slices)


class Scheduler:
    """The steps so far, and the buffers that hold each value. Nodes append their own steps, through these methods.

    A value may be in memory in several versions: in different grids, with different padding, or as plain floats. Its
    home version is the one that its own node writes.
    """

    def __init__(self, graph: Graph, lanes: int, slices: int) -> None:
        self.graph, self.lanes, self.slices = graph, lanes, slices
        self.steps: list[Step] = []
        self.versions: dict[Value, list[tuple[float, Buffer]]] = {}
        self.makers = {value: node for node in graph.nodes for value in node.outputs}
        self.grids = self._choose_grids()
        self.halos = self._collect_halos()
        self.homes = self._place_in_concats()

    # ---- which layouts are needed, before anything is scheduled

    def _choose_grids(self) -> dict[tuple[int, int], Grid]:
        # If all regions are side by side, a row of the neighboring slice is in the same lanes there.
        most_down = 1 if self.slices > 1 else None
        grids: dict[tuple[int, int], Grid] = {}
        before: Grid | None = None
        for value in (value for node in self.graph.nodes for value in node.outputs):
            if value.size not in grids:
                grids[value.size] = choose_grid(*value.size, self.lanes, before=before, most_down=most_down)
                before = grids[value.size] if value.pixels > 1 else before
        return grids

    def _wanted(self, node: Node, window: Window) -> Wanted:
        """The layout in which a node reads its first input through a window."""
        x = node.inputs[0]
        infinite = window.infinite and not self.makers[x].never_negative(x)
        return x, self.grids[node.out.size].scaled(window.stride), -math.inf if infinite else 0.0

    def _collect_halos(self) -> dict[Wanted, Halo]:
        halos: dict[Wanted, Halo] = {}
        for node in self.graph.nodes:
            if node.window is not None:
                key = self._wanted(node, node.window)
                halos[key] = halos.get(key, Halo()) | node.window.halo
        return halos

    def _home_planes(self, value: Value) -> PlaneLayout:
        grid = self.grids[value.size]
        return PlaneLayout(*value.size, grid, self.halos.get((value, grid, 0.0), Halo()))

    def _place_in_concats(self) -> dict[Value, Buffer]:
        """Give values that are joined later a place in the joined buffer, which saves the copy."""
        homes: dict[Value, Buffer] = {}
        for node in self.graph.nodes:
            if not isinstance(node, Concat) or node.out.pixels == 1:
                continue
            movable = [part for part in node.parts if self.makers[part].placeable]
            key = (node.out, self.grids[node.out.size], 0.0)
            for part in movable:
                self.halos[key] = self.halos.get(key, Halo()) | self.halos.get((part, *key[1:]), Halo())
            joined = homes.setdefault(node.out, _buffer(node.out, self._home_planes(node.out)))
            first = 0
            for part in node.parts:
                if part in movable and part not in homes:
                    homes[part] = Buffer(part.channels, part.size, joined.planes, root=joined, first=first)
                first += part.channels
        return homes

    # ---- where a node writes

    def home(self, value: Value) -> Buffer:
        """Return the buffer that a value is written to: planes for images, plain floats for a single pixel."""
        if value in self.homes:
            return self.homes[value]
        return _buffer(value, self._home_planes(value) if value.pixels > 1 else None)

    def new_planes(self, value: Value) -> Buffer:
        """Return the buffer for a kernel that writes planes even if there is a single pixel."""
        home = self.home(value)
        return home if home.planes is not None else _buffer(value, PlaneLayout(*value.size, self.grids[value.size]))

    def new_flat(self, value: Value) -> Buffer:
        """Return a new buffer of plain floats."""
        return _buffer(value, None)

    # ---- where a node reads

    def flat(self, value: Value, node: Node) -> Buffer:
        """Return a value as plain floats, perhaps the caller's. A copy, if needed, counts as a step of `node`."""
        for _, buffer in self.versions[value]:
            if buffer.planes is None:
                return buffer
        return self.keep(value, self.copy(self.first_version(value), self.new_flat(value), node))

    def in_planes(self, value: Value, grid: Grid, node: Node, padding: float = 0.0) -> Buffer:
        """Return a value in planes with this grid, with the halo that all readers of these planes need."""
        halo = self.halos.get((value, grid, padding), Halo())
        for filled, buffer in self.versions[value]:
            planes = buffer.planes
            if planes is not None and planes.grid == grid and planes.halo.covers(halo) and filled == padding:
                return buffer
        target = _buffer(value, PlaneLayout(*value.size, grid, halo))
        return self.keep(value, self.copy(self.first_version(value), target, node, padding), padding)

    def window_input(self, node: Node) -> Buffer:
        """Return the first input of a node in planes that its window can move over."""
        assert node.window is not None
        value, grid, padding = self._wanted(node, node.window)
        return self.in_planes(value, grid, node, padding)

    def home_version(self, value: Value, node: Node) -> Buffer:
        """Return a value in the layout for element-wise work: its home grid, or floats in the arena."""
        if value.pixels > 1:
            return self.in_planes(value, self.grids[value.size], node)
        flat = self.flat(value, node)
        # The caller's input may be neither aligned nor padded to whole vectors.
        return flat if flat.external is None else self.copy(flat, self.new_flat(value), node)

    def first_version(self, value: Value) -> Buffer:
        """Return a value in the layout that it was first written in."""
        return self.versions[value][0][1]

    def strides_while_copying(self, node: Node) -> bool:
        """Whether the input must be copied to another layout anyway, so that the copy can apply the stride."""
        assert node.window is not None
        value, grid, _ = self._wanted(node, node.window)
        elsewhere = all(b.planes is None or b.planes.grid != grid for _, b in self.versions[value])
        return elsewhere and node.window.single_pixel

    # ---- steps

    def emit(self, step: Step) -> None:
        """Append the step that computes the outputs of its node, and fill their halos."""
        self.steps.append(step)
        for value, buffer in zip(step.node.outputs, step.writes, strict=True):
            self.keep(value, buffer)
            self.fill_halos(step.node, buffer)

    def keep(self, value: Value, buffer: Buffer, padding: float = 0.0) -> Buffer:
        """Record that a buffer holds a value."""
        self.versions.setdefault(value, []).append((padding, buffer))
        return buffer

    def copy(
        self, source: Buffer, target: Buffer, node: Node, fill: float = 0.0, step: tuple[int, int] = (1, 1)
    ) -> Buffer:
        """Copy every `step`-th pixel of `source` to `target`, whatever the two layouts; its halo is filled, too."""
        y, x = target.cells.coordinates(halo=True)
        plain = source.planes is None and target.planes is None
        firsts = [number * target.size[0] for number in range(self.slices if source.external else 1)]
        tables = [source.cells.index((first + y) * step[0], x * step[1]).reshape(-1) for first in firsts]
        self.steps.append(GatherStep(node, (source,), (target,), None if plain else np.stack(tables), fill))
        return target

    def fill_halos(self, node: Node, *buffers: Buffer) -> None:
        """Append steps that fill the halos of buffers, if they have any."""
        for buffer in buffers:
            if buffer.planes is not None and buffer.planes.halo:
                self.steps.append(HaloStep(node, (buffer,), (buffer,)))

    def write_output(self, output: Value) -> None:
        """Let the last step write the caller's output."""
        target = Buffer(output.channels, output.size, None, external="output")
        last = self.steps[-1] if self.steps else None
        flat = next((b for _, b in self.versions[output] if b.planes is None), None)
        if isinstance(last, NodeStep) and last.node.writes_to_caller and last.writes == (flat,):
            self.steps[-1] = NodeStep(last.node, last.reads, (target,))
        else:
            self.copy(flat or self.first_version(output), target, self.makers[output])


def _buffer(value: Value, planes: PlaneLayout | None) -> Buffer:
    return Buffer(value.channels, value.size, planes)
