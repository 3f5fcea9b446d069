"""Writes a schedule down as the operations and constants that kernels.c runs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from regrow.deploy.engine import native
from regrow.deploy.engine.arena import Arena, arrange
from regrow.deploy.engine.constants import Constants
from regrow.deploy.engine.graph import Activation, Affine, Binary, Conv, Linear, Pool, macs, pool_weights
from regrow.deploy.engine.layout import Planes, halo_tables
from regrow.deploy.engine.schedule import (
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
from regrow.deploy.engine.tiles import Problem, Tile, choose
from regrow.deploy.engine.weights import (
    ENTRIES,
    FARTHEST,
    Format,
    Walk,
    channel_scales,
    non_zeros,
    stored_values,
    walk,
)

DENSE_FROM = 0.3
"""The density from which a linear layer is stored with its zeros: half the bytes, and no gathering."""


@dataclass(frozen=True)
class Label:
    """What an operation of the plan is, for people."""

    name: str
    kind: str
    macs: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything that the kernels need to run a network on one image."""

    ops: ctypes.Array[native.Op]
    constants: NDArray[np.uint8]
    arena_bytes: int
    lanes: int
    labels: tuple[Label, ...]
    tiles: tuple[Tile, ...]


Walks = dict[tuple[ConvStep, int, int, int], Walk]
"""The order of a convolution's weights for numbers of channels together, of blocks, and of threads that share them."""


def conv_steps(plan: Schedule) -> list[ConvStep]:
    """The steps that take a tile."""
    return [step for step in plan.steps if isinstance(step, ConvStep)]


def problem_of(step: ConvStep, lanes: int, threads: int = 1) -> Problem:
    """What there is to know for choosing a convolution's tile."""
    node = _conv_node(step)
    rows, cols = _region(step)
    nonzeros = int(torch.count_nonzero(node.weight))
    per_output = nonzeros / node.out.channels
    return Problem(rows, cols, node.x.channels, node.kernel, step.stride, lanes, per_output, threads)


def write_plan(
    plan: Schedule,
    tiles: Sequence[Tile] | None = None,
    *,
    threads: int = 1,
    weights: Format = "fp32",
    walks: Walks | None = None,
) -> Plan:
    """The plan with the given tile for each convolution, or with those that the rule chooses.

    `weights` says how they are stored: the kernels must be built for the same. `walks` remembers their order from one
    plan of the same schedule to the next.
    """
    if tiles is None:
        tiles = [choose(problem_of(step, plan.lanes, threads)) for step in conv_steps(plan)]
    writer = _Writer(plan, arrange(plan), threads, weights, {} if walks is None else walks)
    remaining = iter(tiles)
    for step in plan.steps:
        writer.write(step, next(remaining) if isinstance(step, ConvStep) else None)
    return writer.plan(tuple(tiles))


def _conv_node(step: ConvStep) -> Conv:
    assert isinstance(step.node, Conv)
    return step.node


def _out_planes(step: ConvStep) -> Planes:
    planes = step.writes[0].planes
    assert planes is not None
    return planes


def _region(step: ConvStep) -> tuple[int, int]:
    """Rows and columns of the output's region; one long row if nothing tells the rows apart."""
    node, grid = _conv_node(step), _out_planes(step).grid
    pointwise = node.kernel == (1, 1) and step.stride == (1, 1) and node.padding == (0, 0)
    plain = all(b.planes is not None and not b.planes.halo for b in (*step.reads, *step.writes))
    return (1, grid.rows * grid.cols) if pointwise and plain else (grid.rows, grid.cols)


@dataclass
class _Writer:
    schedule: Schedule
    arena: Arena
    threads: int
    weights: Format
    walks: Walks
    constants: Constants = field(default_factory=Constants)
    ops: list[native.Op] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    scratch: int = 0

    def __post_init__(self) -> None:
        self.lanes = self.schedule.lanes
        self.vector = 4 * self.lanes

    def plan(self, tiles: tuple[Tile, ...]) -> Plan:
        ops = (native.Op * len(self.ops))(*self.ops)
        size = self.arena.size + self.scratch
        return Plan(ops, self.constants.joined(), size, self.lanes, tuple(self.labels), tiles)

    def write(self, step: Step, tile: Tile | None) -> None:
        if isinstance(step, ConvStep):
            assert tile is not None
            self.add(self.conv(step, tile), step, "conv")
        elif isinstance(step, GatherStep):
            self.add(self.gather(step), step, "move")
        elif isinstance(step, HaloStep):
            self.add(self.halo(step), step, "halo")
        elif isinstance(step, PoolStep):
            self.add(self.pool(step), step, "pool")
        elif isinstance(step, MeanStep):
            self.add(self.mean(step), step, "mean")
        elif isinstance(step, LinearStep):
            self.add(self.linear(step), step, "linear")
        elif isinstance(step, PointwiseStep):
            self.add(self.pointwise(step), step, "pointwise")

    def add(self, operation: ctypes.Structure, step: Step, kind: str) -> None:
        self.ops.append(native.as_op(operation))
        self.labels.append(Label(step.node.name, kind, macs(step.node) if kind in ("conv", "linear") else 0))

    # ---- operands

    def at(self, buffer: Buffer) -> int:
        """Where a buffer's first channel starts."""
        if buffer.external is not None:
            return native.INPUT if buffer.external == "input" else native.OUTPUT
        size = 4 if buffer.planes is None else buffer.planes.pitch * self.vector
        return self.arena.offsets[buffer.whole] + buffer.first * size

    def planes(self, buffer: Buffer | None) -> native.Planes:
        """A buffer's regions, without the halo before them."""
        if buffer is None:
            return native.Planes(native.ABSENT, 0, 0)
        planes = buffer.planes
        if planes is None:
            return native.Planes(self.at(buffer), 4, 0)
        at = self.at(buffer) + planes.first * self.vector
        return native.Planes(at, planes.pitch * self.vector, planes.row_pitch * self.vector)

    def windows(self, buffer: Buffer, padding: tuple[int, int]) -> native.Planes:
        """A buffer's regions from where the first window starts."""
        operand = self.planes(buffer)
        operand.at -= padding[0] * operand.row + padding[1] * self.vector
        return operand

    def floats(self, values: torch.Tensor | None) -> int:
        """One number per channel, padded to whole vectors."""
        if values is None:
            return native.ABSENT
        array = values.detach().numpy().astype(np.float32)
        return self.constants.put(np.pad(array, (0, -len(array) % self.lanes)))

    def steps(self, weight: torch.Tensor) -> int:
        """What a weight of one is worth in each output channel, if weights are stored as small integers."""
        return self.floats(channel_scales(weight)) if self.weights == "int8" else native.ABSENT

    def fewest_blocks(self, node: Conv, x: Planes) -> int:
        """Blocks of input channels in which the farthest offset can be written."""
        if self.weights == "fp32":
            return 1
        reach = [d * (k - 1) for d, k in zip(node.dilation, node.kernel, strict=True)]
        channels = (FARTHEST[self.weights] - reach[0] * x.row_pitch - reach[1]) // x.pitch
        if channels < 1:
            raise ValueError(f"{node.name}: a channel of {x.height} x {x.width} pixels is too large for 16-bit offsets")
        return -(-node.x.channels // channels)

    def mask(self, buffer: Buffer) -> int:
        planes = buffer.planes
        return native.ABSENT if planes is None or not planes.ragged else self.constants.put(planes.mask())

    # ---- operations

    def conv(self, step: ConvStep, tile: Tile) -> native.Conv:
        node, x, out = _conv_node(step), step.x.planes, step.writes[0]
        assert x is not None
        rows, cols = _region(step)
        shares_channels = problem_of(step, self.lanes, self.threads).shares_channels(tile)
        blocks = max(tile.blocks, self.fewest_blocks(node, x))
        parts = self.threads if shares_channels else 1
        key = (step, tile.together, blocks, parts)
        if key not in self.walks:
            self.walks[key] = walk(
                non_zeros(node, x, self.weights),
                ENTRIES[self.weights],
                self.vector if self.weights == "fp32" else 1,
                together=tile.together,
                blocks=blocks,
                parts=parts,
            )
        steps = self.walks[key]
        if blocks > 1:
            self.scratch = max(self.scratch, node.out.channels * tile.vectors * self.vector * self.threads)
        tail = node.tail
        ones = torch.ones(node.out.channels)
        return native.Conv(
            in_=self.windows(step.x, node.padding),
            out=self.planes(step.out),
            residual=self.planes(step.residual),
            tail=self.planes(step.tail),
            entries=self.constants.put(steps.entries),
            starts=self.constants.put(steps.starts),
            bases=self.constants.put(steps.bases * self.vector),
            order=self.constants.put(steps.order),
            parts=self.constants.put(steps.parts),
            bias=self.floats(node.bias),
            step=self.steps(node.weight),
            scale=native.ABSENT if tail is None else self.floats(ones if tail.scale is None else tail.scale),
            shift=native.ABSENT if tail is None else self.floats(0 * ones if tail.shift is None else tail.shift),
            mask=self.mask(out),
            scratch=self.arena.size,
            rows=rows,
            cols=cols,
            channels=node.out.channels,
            groups=steps.groups,
            blocks=blocks,
            together=tile.together,
            down=tile.down,
            across=tile.across,
            stride_rows=step.stride[0],
            stride_cols=step.stride[1],
            share_channels=shares_channels,
            act=_activate(node.activation),
            tail_act=_activate(tail.activation if tail is not None else Activation()),
        )

    def gather(self, step: GatherStep) -> native.Gather:
        (source,), (target,) = step.reads, step.writes
        pitches = [b.pixels if b.planes is None else b.planes.pitch * self.lanes for b in (source, target)]
        table = native.ABSENT if step.table is None else self.constants.put(step.table.astype(np.int32))
        return native.Gather(
            from_=self.at(source),
            to=self.at(target),
            table=table,
            channels=1 if step.table is None else target.channels,
            count=target.channels * target.pixels if step.table is None else len(step.table),
            from_pitch=pitches[0],
            to_pitch=pitches[1],
            fill=step.fill,
        )

    def halo(self, step: HaloStep) -> native.Halo:
        (buffer,) = step.writes
        assert buffer.planes is not None
        image = self.planes(buffer)
        image.at = self.at(buffer)
        neighbours, moves = halo_tables(buffer.planes)
        return native.Halo(
            image=image,
            neighbours=self.constants.put(neighbours),
            moves=self.constants.put(moves),
            channels=buffer.channels,
            cells=len(moves),
        )

    def pool(self, step: PoolStep) -> native.Pool:
        node, out = step.node, step.writes[0]
        assert isinstance(node, Pool)
        assert out.planes is not None
        grid = out.planes.grid
        return native.Pool(
            in_=self.windows(step.reads[0], node.padding),
            out=self.planes(out),
            weights=self.pool_weights(node, out.planes),
            mask=self.mask(out),
            channels=out.channels,
            rows=grid.rows,
            cols=grid.cols,
            kernel_rows=node.kernel[0],
            kernel_cols=node.kernel[1],
            stride_rows=node.stride[0],
            stride_cols=node.stride[1],
            maximum=node.op == "max",
            scale=1 / (node.kernel[0] * node.kernel[1]),
        )

    def pool_weights(self, node: Pool, out: Planes) -> int:
        """What each pixel's sum is multiplied with, if windows at the edge count fewer pixels than the others."""
        weights = pool_weights(node)
        if node.op == "max" or np.all(weights == weights[0, 0]):
            return native.ABSENT
        y, x = out.coordinates(halo=False)
        inside = out.contains(y, x)
        values = weights[np.where(inside, y, 0), np.where(inside, x, 0)]
        return self.constants.put(np.where(inside, values, 0).astype(np.float32))

    def mean(self, step: MeanStep) -> native.Mean:
        (image,), (out,) = step.reads, step.writes
        if image.planes is None:
            return native.Mean(native.Planes(self.at(image), 4, 0), self.at(out), image.channels, 0, 0, 1.0)
        grid = image.planes.grid
        return native.Mean(
            in_=self.planes(image),
            out=self.at(out),
            channels=image.channels,
            rows=grid.rows,
            cols=grid.cols,
            scale=1 / image.pixels,
        )

    def linear(self, step: LinearStep) -> native.Linear:
        node = step.node
        assert isinstance(node, Linear)
        weight = stored_values(node.weight, self.weights)
        outputs, inputs = weight.shape
        dense = bool(np.count_nonzero(weight) >= DENSE_FROM * weight.size)
        starts = native.ABSENT
        if dense:
            padded = np.pad(weight, ((0, -outputs % self.lanes), (0, 0)))
            weights = self.constants.put(padded.reshape(-1, self.lanes, inputs).transpose(0, 2, 1))
        else:
            if inputs > FARTHEST[self.weights]:
                raise ValueError(f"{node.name}: {inputs} inputs are too many for 16-bit offsets")
            row, column = np.nonzero(weight)
            entries = np.zeros(len(row), ENTRIES[self.weights])
            entries["offset"] = column * (4 if self.weights == "fp32" else 1)
            entries["value"] = weight[row, column]
            weights = self.constants.put(entries)
            starts = self.constants.put(np.searchsorted(row, np.arange(outputs + 1)).astype(np.int32))
        return native.Linear(
            in_=self.at(step.reads[0]),
            out=self.at(step.writes[0]),
            weights=weights,
            starts=starts,
            bias=self.floats(node.bias),
            step=self.steps(node.weight),
            inputs=inputs,
            outputs=outputs,
            dense=dense,
            act=_activate(node.activation),
        )

    def pointwise(self, step: PointwiseStep) -> native.Pointwise:
        node, out = step.node, step.writes[0]
        affine = node if isinstance(node, Affine) else None
        binary = node if isinstance(node, Binary) else None
        b = step.reads[1] if len(step.reads) > 1 else None
        planes = out.planes
        if planes is None:
            shape = (1, 1, -(-out.channels * out.pixels // self.lanes))
        else:
            shape = (out.channels, planes.grid.rows, planes.grid.cols)
        return native.Pointwise(
            a=self.planes(step.reads[0]),
            b=self.planes(b),
            out=self.planes(out),
            scale=self.floats(affine.scale if affine is not None else None),
            shift=self.floats(affine.shift if affine is not None else None),
            mask=self.mask(out),
            channels=shape[0],
            rows=shape[1],
            cols=shape[2],
            multiply=binary is not None and binary.op == "mul",
            broadcast=b is not None and b.planes is None and planes is not None,
            features=planes is None,
            act=_activate(node.activation if isinstance(node, Affine | Binary) else Activation()),
        )


def _activate(activation: Activation) -> native.Activate:
    return native.Activate(activation.kind, activation.low, activation.high)
