"""Writes steps down as the operations that kernels.c runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from regrow.engine.codegen import structs as native
from regrow.engine.frontend.graph import Activation, Affine, Binary, Conv, Pool, macs, pool_weights
from regrow.engine.frontend.tracer import UnsupportedOperationError
from regrow.engine.plan.arena import buffer_bytes
from regrow.engine.plan.borders import BorderWriter
from regrow.engine.plan.layout import Planes, halo_sides, runs_of
from regrow.engine.plan.operands import Operands
from regrow.engine.plan.problems import problem_of, region_of
from regrow.engine.plan.steps import (
    ConvStep,
    GatherStep,
    HaloStep,
    LinearStep,
    MeanStep,
    PointwiseStep,
    PoolStep,
    Step,
)
from regrow.engine.plan.tiles import Tile
from regrow.engine.plan.weights import Format, Walk, matrix, non_zeros, walk
from regrow.engine.runtime.model import CPU

LARGE = 512 << 10
"""Bytes from which the cells of an image are worth asking for in advance."""

MOST_BYTES = 2**31
"""Bytes of an image that is too large."""

Asked = ParamSpec("Asked")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Label:
    """What an operation of the plan is, for people."""

    name: str
    kind: str
    macs: int = 0


class Once:
    """Calls functions once for the same arguments: plans of the same layers have most of what is written in common."""

    def __init__(self) -> None:
        self._results: dict[Hashable, Any] = {}

    def __call__(self, function: Callable[Asked, Result], *args: Asked.args, **kwargs: Asked.kwargs) -> Result:
        """What the function returns, or has returned."""
        key = (function, args, tuple(kwargs.items()))
        if key not in self._results:
            self._results[key] = function(*args, **kwargs)
        result: Result = self._results[key]
        return result


@dataclass
class Writer:
    """Turns steps into operations, one after the other; `threads` may share each of them.

    `scratch` is how many bytes the operations need behind the arena.
    """

    operands: Operands
    threads: int
    once: Once
    shares: int
    borders: BorderWriter
    ops: list[native.Op] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    scratch: int = 0

    def write(self, step: Step, tile: Tile | None) -> None:
        """Append the operation of a step; `tile` is for convolutions."""
        self._check_size(step)
        if isinstance(step, ConvStep):
            assert tile is not None
            self._add(self._conv(step, tile), step, "conv")
        elif isinstance(step, GatherStep):
            self._add(self._gather(step), step, "move")
        elif isinstance(step, HaloStep):
            halo = self._halo(step)
            if halo.above or halo.below or halo.left or halo.right:
                self._add(halo, step, "halo")
        elif isinstance(step, PoolStep):
            self._add(self._pool(step), step, "pool")
        elif isinstance(step, MeanStep):
            self._add(self._mean(step), step, "mean")
        elif isinstance(step, LinearStep):
            self._add(self._linear(step), step, "linear")
        elif isinstance(step, PointwiseStep):
            self._add(self._pointwise(step), step, "pointwise")
        else:
            raise TypeError(f"no operation is known for {type(step).__name__}")

    def _check_size(self, step: Step) -> None:
        """The kernels count the bytes of an image in 32 bits."""
        for buffer in step.writes:
            size = 0 if buffer.external else buffer_bytes(buffer.whole, self.operands.lanes)
            if size >= MOST_BYTES:
                shape = " x ".join(map(str, (buffer.channels, *buffer.size)))
                raise UnsupportedOperationError(
                    f"{step.node.name}: an image of {shape} takes {size / 2**30:.1f} GB in the engine, which runs "
                    "layers of less than 2 GB. Cut the input into smaller pictures."
                )

    def _add(self, operation: ctypes.Structure, step: Step, kind: str) -> None:
        self.ops.append(native.as_op(operation, self.borders.exchange(step)))
        shares = self.shares if kind == "conv" else 1
        work = shares * self.once(macs, step.node) if kind in ("conv", "linear") else 0
        self.labels.append(Label(step.node.name, kind, work))

    def _conv(self, step: ConvStep, tile: Tile) -> native.Conv:
        node, out = step.node, step.writes[0]
        rows, cols = region_of(step)
        problem = self.once(problem_of, step, self.operands.lanes, self.threads)
        # Of all rows: threads that share an image don't run bands.
        sharing = replace(problem, rows=rows, cols=cols).sharing(tile)
        steps, blocks = self._walk(step, tile, self.threads if sharing else 1)
        tail = node.tail
        scale, shift = (None, None) if tail is None else (tail.scale, tail.shift)
        if tail is not None:
            scale = torch.ones(node.out.channels, device=CPU) if scale is None else scale
            shift = torch.zeros(node.out.channels, device=CPU) if shift is None else shift
        return native.Conv(
            in_=self.operands.windows(step.x, node.padding),
            out=self.operands.planes(step.out),
            residual=self.operands.planes(step.residual),
            tail=self.operands.planes(step.tail),
            entries=self.operands.constants.put(steps.entries),
            starts=self.operands.constants.put(steps.starts),
            bases=self.operands.constants.put(steps.bases * self.operands.vector),
            order=self._order(steps, tile),
            parts=self.operands.constants.put(steps.parts),
            bias=self.operands.floats(node.bias),
            step=self.operands.steps(node.weight),
            scale=self.operands.floats(scale),
            shift=self.operands.floats(shift),
            mask=self.operands.mask(out),
            scratch=self.operands.arena.size,
            box=self.borders.box(step.out),
            tail_box=self.borders.box(step.tail),
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
            share_channels=sharing,
            followers=step.followers,
            band=step.band,
            prefetch=step.out is not None and buffer_bytes(step.out.whole, self.operands.lanes) > LARGE,
            downwards=node.kernel[0] > step.stride[0],
            act=_activate(node.activation),
            tail_act=_activate(tail.activation if tail is not None else Activation()),
        )

    def _order(self, steps: Walk, tile: Tile) -> int:
        """With one group too many at the end, which is looked at but not computed; single channels need none."""
        if tile.together == 1:
            return 0
        return self.operands.constants.put(np.pad(steps.order.reshape(-1), (0, tile.together), mode="edge"))

    def _walk(self, step: ConvStep, tile: Tile, parts: int) -> tuple[Walk, int]:
        """The order of a convolution's weights, and in how many blocks of input channels they come."""
        node, x, operands = step.node, step.x.planes, self.operands
        assert x is not None
        blocks = max(tile.blocks, operands.fewest_blocks(node, x))
        if blocks > 1:
            self.scratch = max(self.scratch, node.out.channels * tile.vectors * operands.vector * self.threads)
        unit = operands.vector if operands.weights == "fp32" else 1
        walked = self.once(_walked, node, x, operands.weights, unit, together=tile.together, blocks=blocks, parts=parts)
        return walked, blocks

    def _gather(self, step: GatherStep) -> native.Gather:
        (source,), (target,) = step.reads, step.writes
        pitches = [b.pixels if b.planes is None else b.planes.pitch * self.operands.lanes for b in (source, target)]
        table = runs = native.ABSENT
        run_count = 0
        if step.table is not None:
            table = self.operands.constants.put(step.table.astype(np.int32))
            found = runs_of(step.table[0], self.operands.lanes) if len(step.table) == 1 else np.zeros(0)
            runs, run_count = self.operands.constants.put(found.astype(np.int32)), len(found)
        return native.Gather(
            from_=self.operands.at(source),
            to=self.operands.at(target),
            table=table,
            runs=runs,
            channels=1 if step.table is None else target.channels,
            count=target.channels * target.pixels if step.table is None else step.table.shape[1],
            from_pitch=pitches[0],
            to_pitch=pitches[1],
            run_count=run_count,
            tables=1 if step.table is None else len(step.table),
            fill=step.fill,
        )

    def _halo(self, step: HaloStep) -> native.Halo:
        (buffer,) = step.writes
        assert buffer.planes is not None
        halo = buffer.planes.halo
        rows, none = (halo.top, halo.bottom), (0, 0)
        own, borrowed = (rows, none) if self.shares == 1 else (none, rows)
        sides = halo_sides(buffer.planes)[sum(borrowed) :]
        return native.Halo(
            image=self.operands.planes(buffer),
            sides=self.operands.constants.put(sides),
            above=own[0],
            below=own[1],
            left=halo.left,
            right=halo.right,
            borrows_above=borrowed[0],
            borrows_below=borrowed[1],
            channels=buffer.channels,
        )

    def _pool(self, step: PoolStep) -> native.Pool:
        node, out = step.node, step.writes[0]
        assert out.planes is not None
        grid = out.planes.grid
        return native.Pool(
            in_=self.operands.windows(step.reads[0], node.padding),
            out=self.operands.planes(out),
            weights=self._pool_weights(node, out.planes),
            mask=self.operands.mask(out),
            channels=out.channels,
            rows=grid.rows,
            cols=grid.cols,
            kernel_rows=node.kernel[0],
            kernel_cols=node.kernel[1],
            stride_rows=node.stride[0],
            stride_cols=node.stride[1],
            maximum=node.op == "max",
            scale=float(pool_weights(node)[0, 0]),
        )

    def _pool_weights(self, node: Pool, out: Planes) -> int:
        """What each pixel's sum is multiplied with, where that differs between pixels; else `scale` says it for all."""
        weights = pool_weights(node)
        if node.op == "max" or np.all(weights == weights[0, 0]):
            return native.ABSENT
        y, x = out.coordinates(halo=False)
        inside = out.contains(y, x)
        values = weights[np.where(inside, y, 0), np.where(inside, x, 0)]
        return self.operands.constants.put(np.where(inside, values, 0).astype(np.float32))

    def _mean(self, step: MeanStep) -> native.Mean:
        (image,), (out,) = step.reads, step.writes
        assert image.planes is not None
        grid = image.planes.grid
        return native.Mean(
            in_=self.operands.planes(image),
            out=self.operands.at(out),
            channels=image.channels,
            rows=grid.rows,
            cols=grid.cols,
            scale=1 / (self.shares * image.pixels),
        )

    def _linear(self, step: LinearStep) -> native.Linear:
        node = step.node
        outputs, inputs = node.weight.shape
        written = self.once(matrix, node, self.operands.weights, self.operands.lanes)
        return native.Linear(
            in_=self.operands.at(step.reads[0]),
            out=self.operands.at(step.writes[0]),
            weights=self.operands.constants.put(written.weights),
            starts=native.ABSENT if written.starts is None else self.operands.constants.put(written.starts),
            bias=self.operands.floats(node.bias),
            step=self.operands.steps(node.weight),
            inputs=inputs,
            outputs=outputs,
            dense=written.starts is None,
            act=_activate(node.activation),
        )

    def _pointwise(self, step: PointwiseStep) -> native.Pointwise:
        node, out = step.node, step.writes[0]
        affine = node if isinstance(node, Affine) else None
        binary = node if isinstance(node, Binary) else None
        b = step.reads[1] if len(step.reads) > 1 else None
        planes = out.planes
        if planes is None:
            shape = (1, 1, -(-out.channels * out.pixels // self.operands.lanes))
        else:
            shape = (out.channels, planes.grid.rows, planes.grid.cols)
        return native.Pointwise(
            a=self.operands.planes(step.reads[0]),
            b=self.operands.planes(b),
            out=self.operands.planes(out),
            scale=self.operands.floats(affine.scale if affine is not None else None),
            shift=self.operands.floats(affine.shift if affine is not None else None),
            mask=self.operands.mask(out),
            channels=shape[0],
            rows=shape[1],
            cols=shape[2],
            multiply=binary is not None and binary.op == "mul",
            broadcast=b is not None and b.planes is None and planes is not None,
            features=planes is None,
            act=_activate(node.activation if isinstance(node, Affine | Binary) else Activation()),
        )


def _walked(node: Conv, x: Planes, kind: Format, unit: int, *, together: int, blocks: int, parts: int) -> Walk:
    return walk(non_zeros(node, x, kind), kind, unit, together=together, blocks=blocks, parts=parts)


def _activate(activation: Activation) -> native.Activate:
    return native.Activate(activation.kind, activation.low, activation.high)
