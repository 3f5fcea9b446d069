"""Turns a graph into steps on buffers: every value gets a layout, and what moves between layouts becomes a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from regrow.engine.frontend.graph import (
    Act,
    Activation,
    Affine,
    Binary,
    Concat,
    Conv,
    Graph,
    Input,
    Linear,
    Mean,
    Node,
    Pool,
    Reshape,
    Value,
)
from regrow.engine.plan.chains import chained
from regrow.engine.plan.layout import Grid, Halo, Planes, choose_grid
from regrow.engine.plan.steps import (
    Buffer,
    ConvStep,
    GatherStep,
    HaloStep,
    LinearStep,
    MeanStep,
    PointwiseStep,
    PoolStep,
    Schedule,
    Step,
)

Wanted = tuple[Value, Grid, float]
"""A value, cut in a certain way, with a certain number in its padding."""


def schedule(graph: Graph, lanes: int, *, shares: int = 1) -> Schedule:
    """Choose layouts for vectors of `lanes` floats and list the steps.

    With several `shares`, the graph is that of one share of the rows of the caller's image.
    """
    scheduler = _Scheduler(graph, lanes, shares)
    for node in graph.nodes:
        scheduler.add(node)
    scheduler.give(graph.output)
    steps = chained(scheduler.steps, lanes) if shares == 1 else tuple(scheduler.steps)
    return Schedule(steps, lanes, shares)


def window_halo(node: Conv | Pool) -> Halo:
    """How far a node's windows reach over the edges of the regions they start in."""
    dilation = node.dilation if isinstance(node, Conv) else (1, 1)
    before = node.padding
    reach = [d * (k - 1) for d, k in zip(dilation, node.kernel, strict=True)]
    after = [max(0, r - p - s + 1) for r, p, s in zip(reach, before, node.stride, strict=True)]
    return Halo(before[0], after[0], before[1], after[1])


def _overhangs(node: Pool) -> bool:
    """True if a window reaches out of the image."""
    far = [
        (o - 1) * s - p + k for o, s, p, k in zip(node.out.size, node.stride, node.padding, node.kernel, strict=True)
    ]
    return any(node.padding) or far[0] > node.x.size[0] or far[1] > node.x.size[1]


@dataclass
class _Scheduler:
    graph: Graph
    lanes: int
    shares: int
    steps: list[Step] = field(default_factory=list)
    versions: dict[Value, list[tuple[float, Buffer]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.makers = {value: node for node in self.graph.nodes for value in node.outputs}
        self.grids = self._choose_grids()
        self.halos = self._collect_halos()
        self.homes = self._place_in_concats()

    # ---- what layouts are wanted, before anything is scheduled

    def _choose_grids(self) -> dict[tuple[int, int], Grid]:
        # A row that comes from a neighbouring share is in the same lanes there if regions lie in one row.
        most_down = 1 if self.shares > 1 else None
        grids: dict[tuple[int, int], Grid] = {}
        before: Grid | None = None
        for value in (value for node in self.graph.nodes for value in node.outputs):
            if value.size not in grids:
                grids[value.size] = choose_grid(*value.size, self.lanes, before=before, most_down=most_down)
                before = grids[value.size] if value.pixels > 1 else before
        return grids

    def _wanted(self, node: Conv | Pool) -> Wanted:
        padding = -math.inf if self._needs_infinity(node) else 0.0
        return node.x, self.grids[node.out.size].scaled(node.stride), padding

    def _needs_infinity(self, node: Conv | Pool) -> bool:
        """Zero is the right padding of a maximum only among numbers that are not negative."""
        if not isinstance(node, Pool) or node.op != "max" or not _overhangs(node):
            return False
        return not self._not_negative(node.x)

    def _not_negative(self, value: Value) -> bool:
        maker = self.makers[value]
        if isinstance(maker, Conv) and maker.tail is not None and maker.tail.out is value:
            maker = maker.tail
        activation: Activation = getattr(maker, "activation", Activation())
        clamped = activation.kind is Act.CLAMP and activation.low >= 0
        return clamped or activation.kind in (Act.RELU, Act.SIGMOID, Act.HARDSIGMOID)

    def _collect_halos(self) -> dict[Wanted, Halo]:
        halos: dict[Wanted, Halo] = {}
        for node in self.graph.nodes:
            if isinstance(node, Conv | Pool):
                key = self._wanted(node)
                halos[key] = halos.get(key, Halo()) | window_halo(node)
        return halos

    def _home_planes(self, value: Value) -> Planes:
        grid = self.grids[value.size]
        return Planes(*value.size, grid, self.halos.get((value, grid, 0.0), Halo()))

    def _place_in_concats(self) -> dict[Value, Buffer]:
        """Values that are joined later are written where the joined channels will lie, which saves the copy."""
        homes: dict[Value, Buffer] = {}
        for node in self.graph.nodes:
            if not isinstance(node, Concat) or node.out.pixels == 1:
                continue
            movable = [part for part in node.parts if not isinstance(self.makers[part], Input | Reshape | Concat)]
            key = (node.out, self.grids[node.out.size], 0.0)
            for part in movable:
                self.halos[key] = self.halos.get(key, Halo()) | self.halos.get((part, *key[1:]), Halo())
            joined = homes.setdefault(node.out, self._new(node.out, self._home_planes(node.out)))
            first = 0
            for part in node.parts:
                if part in movable and part not in homes:
                    homes[part] = Buffer(part.channels, part.size, joined.planes, root=joined, first=first)
                first += part.channels
        return homes

    # ---- buffers

    def _new(self, value: Value, planes: Planes | None) -> Buffer:
        return Buffer(value.channels, value.size, planes)

    def _home(self, value: Value) -> Buffer:
        """Where a value is written by the node that makes it."""
        if value in self.homes:
            return self.homes[value]
        return self._new(value, self._home_planes(value) if value.pixels > 1 else None)

    def _keep(self, value: Value, buffer: Buffer, padding: float = 0.0) -> Buffer:
        self.versions.setdefault(value, []).append((padding, buffer))
        return buffer

    def _flat(self, value: Value, node: Node) -> Buffer:
        """The value as plain floats."""
        for _, buffer in self.versions[value]:
            if buffer.planes is None:
                return buffer
        return self._keep(value, self._copy(self.versions[value][0][1], self._new(value, None), node))

    def _in_planes(self, node: Node, value: Value, grid: Grid, padding: float = 0.0) -> Buffer:
        """The value in planes cut by `grid`, with all the halo that any reader of these planes wants."""
        halo = self.halos.get((value, grid, padding), Halo())
        for filled, buffer in self.versions[value]:
            planes = buffer.planes
            if planes is not None and planes.grid == grid and planes.halo.covers(halo) and filled == padding:
                return buffer
        source = self.versions[value][0][1]
        planes = Planes(*value.size, grid, halo)
        return self._keep(value, self._copy(source, self._new(value, planes), node, padding), padding)

    def _copy(
        self, source: Buffer, target: Buffer, node: Node, fill: float = 0.0, step: tuple[int, int] = (1, 1)
    ) -> Buffer:
        """Gather `target` from every `step`-th pixel of `source`, whatever the two layouts."""
        if target.planes is not None:
            y, x = target.planes.coordinates(halo=True)
        else:
            y, x = np.indices(target.size, dtype=np.int64)
        plain = source.planes is None and target.planes is None
        firsts = [share * target.size[0] for share in range(self.shares if source.external else 1)]
        tables = [source.index((first + y) * step[0], x * step[1]).reshape(-1) for first in firsts]
        table = None if plain else np.stack(tables)
        self.steps.append(GatherStep(node, (source,), (target,), table, fill))
        return target

    def _exchange(self, node: Node, *buffers: Buffer | None) -> None:
        for buffer in buffers:
            if buffer is not None and buffer.planes is not None and buffer.planes.halo:
                self.steps.append(HaloStep(node, (buffer,), (buffer,)))

    # ---- nodes

    def add(self, node: Node) -> None:
        """Append the steps of one node."""
        if isinstance(node, Input):
            height, width = node.out.size
            self._keep(node.out, Buffer(node.out.channels, (self.shares * height, width), None, external="input"))
        elif isinstance(node, Reshape):
            flat = self._flat(node.x, node)
            self._keep(node.out, Buffer(node.out.channels, node.out.size, None, flat.external, flat.whole, flat.first))
        elif isinstance(node, Conv):
            self._conv(node)
        elif isinstance(node, Pool):
            self._pool(node)
        elif isinstance(node, Mean):
            image = self._home_version(node, node.x)
            self.steps.append(MeanStep(node, (image,), (self._keep(node.out, self._new(node.out, None)),)))
        elif isinstance(node, Linear):
            features = self._flat(node.x, node)
            self.steps.append(LinearStep(node, (features,), (self._keep(node.out, self._new(node.out, None)),)))
        elif isinstance(node, Affine | Binary):
            self._pointwise(node)
        elif isinstance(node, Concat):
            self._concat(node)
        else:
            raise TypeError(f"no step is known for {type(node).__name__}")

    def _home_version(self, node: Node, value: Value) -> Buffer:
        """The value where pixels are combined one by one: in its home grid, or as arena floats if it is flat."""
        if value.pixels > 1:
            return self._in_planes(node, value, self.grids[value.size])
        flat = self._flat(value, node)
        # The caller's input may be neither aligned nor padded to whole vectors.
        return flat if flat.external is None else self._copy(flat, self._new(value, None), node)

    def _written_planes(self, value: Value) -> Buffer:
        """Where a step that works on planes writes `value`, even if it is a single pixel."""
        home = self._home(value)
        return home if home.planes is not None else self._new(value, Planes(*value.size, self.grids[value.size]))

    def _finish(self, node: Node, *written: tuple[Value, Buffer]) -> None:
        for value, buffer in written:
            self._keep(value, buffer)
            self._exchange(node, buffer)

    def _conv(self, node: Conv) -> None:
        x, stride = self._conv_input(node)
        residual = None
        if node.residual is not None:
            residual = self._in_planes(node, node.residual, self.grids[node.out.size])
        out = self._written_planes(node.out) if node.keeps_out else None
        tail = self._written_planes(node.tail.out) if node.tail is not None else None
        reads = (x,) if residual is None else (x, residual)
        writes = tuple(buffer for buffer in (out, tail) if buffer is not None)
        self.steps.append(ConvStep(node, reads, writes, x, out, residual, tail, stride))
        self._finish(node, *zip(node.outputs, writes, strict=True))

    def _conv_input(self, node: Conv) -> tuple[Buffer, tuple[int, int]]:
        """What a convolution reads, and the stride that is left to it."""
        if not self._thins_while_moving(node):
            return self._in_planes(node, *self._wanted(node)), node.stride
        target = Buffer(node.x.channels, node.out.size, Planes(*node.out.size, self.grids[node.out.size]))
        return self._copy(self.versions[node.x][0][1], target, node, step=node.stride), (1, 1)

    def _thins_while_moving(self, node: Conv | Pool) -> bool:
        """Whether pixels have to move between lanes, so that those that a 1 x 1 window skips can stay behind."""
        grid = self._wanted(node)[1]
        elsewhere = all(b.planes is None or b.planes.grid != grid for _, b in self.versions[node.x])
        return elsewhere and node.kernel == (1, 1) and node.padding == (0, 0)

    def _pool(self, node: Pool) -> None:
        out = self._written_planes(node.out)
        if node.op == "max" and self._thins_while_moving(node):
            # The maximum of one pixel is the pixel; the copy has the halo, too.
            self._keep(node.out, self._copy(self.versions[node.x][0][1], out, node, step=node.stride))
            return
        x = self._in_planes(node, *self._wanted(node))
        self.steps.append(PoolStep(node, (x,), (out,)))
        self._finish(node, (node.out, out))

    def _pointwise(self, node: Affine | Binary) -> None:
        reads = tuple(self._home_version(node, value) for value in node.inputs)
        out = self._home(node.out)
        self.steps.append(PointwiseStep(node, reads, (out,)))
        self._finish(node, (node.out, out))

    def _concat(self, node: Concat) -> None:
        out = self._home(node.out)
        first, copied = 0, []
        for part in node.parts:
            home = self.homes.get(part)
            window = Buffer(part.channels, part.size, out.planes, root=out.whole, first=out.first + first)
            if home is None or home.root is not out or home.first != first:
                source = self._flat(part, node) if out.planes is None else self._home_version(node, part)
                self._copy_part(node, source, window)
                copied.append(window)
            first += part.channels
        self._keep(node.out, out)
        self._exchange(node, *copied)

    def _copy_part(self, node: Concat, source: Buffer, window: Buffer) -> None:
        if window.planes is None:
            self.steps.append(GatherStep(node, (source,), (window,), None))
        else:
            self.steps.append(PointwiseStep(node, (source,), (window,)))

    def give(self, output: Value) -> None:
        """Let the last step write the caller's output."""
        target = Buffer(output.channels, output.size, None, external="output")
        node = self.makers[output]
        source = next((b for _, b in self.versions[output] if b.planes is None), self.versions[output][0][1])
        last = self.steps[-1] if self.steps else None
        if isinstance(last, LinearStep) and last.writes == (source,):
            self.steps[-1] = LinearStep(last.node, last.reads, (target,))
        else:
            self._copy(source, target, node)
