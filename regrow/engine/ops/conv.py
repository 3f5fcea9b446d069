"""Sparse convolutions, with everything that is done while the result is in registers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from regrow.engine.codegen.structs import ACTIVATE, I32, OFFSET, PLANES, Fields
from regrow.engine.frontend.graph import Value, WeightedNode
from regrow.engine.ops.activations import IDENTITY, Activation
from regrow.engine.ops.base import lowers, operation
from regrow.engine.ops.linear import Linear, read_bias
from regrow.engine.ops.pointwise import Affine
from regrow.engine.plan.layout import PlaneLayout, Window
from regrow.engine.plan.steps import Buffer, Schedule, Step
from regrow.engine.plan.tiles import Tile, problem_of, region_of
from regrow.engine.plan.weights import FARTHEST, Format, SparseWeights, non_zeros, sparse_weights

if TYPE_CHECKING:
    from regrow.engine.frontend.torch_export import Call
    from regrow.engine.plan.lower import Lowering
    from regrow.engine.plan.schedule import Scheduler

LARGE = 512 << 10
"""Output size in bytes above which the kernel prefetches."""


@operation("conv2d")
@dataclass(frozen=True, eq=False)
class Conv(WeightedNode):
    """`y = activation(conv(x) + bias + residual)`; `second_output` writes `affine(y)` in the same pass."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    activation: Activation = IDENTITY
    residual: Value | None = None
    second_output: Affine | None = None
    keeps_out: bool = True

    @classmethod
    def lower(cls, call: Call) -> None:
        """Lower `conv2d`."""
        weight = call.weight("weight")
        dilation = call.pair("dilation")
        if call.args["padding"] == "same":
            # torch pads the far side as much as the size of the output requires.
            padding = tuple(d * (k - 1) // 2 for d, k in zip(dilation, weight.shape[2:], strict=True))
        else:
            padding = (0, 0) if call.args["padding"] == "valid" else call.pair("padding")
        call.add(
            cls,
            call.value("input"),
            weight,
            read_bias(call, weight),
            stride=call.pair("stride"),
            padding=padding,
            dilation=dilation,
            groups=call.args["groups"],
        )

    @property
    def kernel(self) -> tuple[int, int]:
        """Height and width of the window."""
        return (self.weight.shape[2], self.weight.shape[3])

    @property
    def window(self) -> Window:
        """The window that it moves over `x`."""
        return Window(self.kernel, self.stride, self.padding, self.dilation)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """`out` is not written if only the second output is read (the last block of a pre-activation network)."""
        kept = (self.out,) if self.keeps_out else ()
        return kept if self.second_output is None else (*kept, self.second_output.out)

    def reference(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Compute the outputs with torch."""
        x = F.pad(x, self.window.padding_for(self.x.size, self.out.size))
        y = F.conv2d(x, *self.float_weights, self.stride, 0, self.dilation, self.groups)
        y = self.activation(y if residual is None else y + residual)
        kept = (y,) if self.keeps_out else ()
        return kept if self.second_output is None else (*kept, self.second_output.reference(y))

    def never_negative(self, value: Value) -> bool:
        """Whether the activation returns no negative values."""
        second = self.second_output
        return (
            second.never_negative(value)
            if second is not None and second.out is value
            else self.activation.never_negative
        )

    def splits_by_rows(self) -> bool:
        """Whether the stride divides the rows."""
        return self.out.pixels > 1 and self.x.size[0] == self.stride[0] * self.out.size[0]

    def schedule(self, plan: Scheduler) -> None:
        """Append one step, after a copy of the input if its layout does not fit."""
        if plan.strides_while_copying(self):
            layout = PlaneLayout(*self.out.size, plan.grids[self.out.size])
            x = plan.copy(
                plan.first_version(self.x), Buffer(self.x.channels, self.out.size, layout), self, step=self.stride
            )
            stride = (1, 1)
        else:
            x, stride = plan.window_input(self), self.stride
        residual = None
        if self.residual is not None:
            residual = plan.in_planes(self.residual, plan.grids[self.out.size], self)
        out = plan.new_planes(self.out) if self.keeps_out else None
        second = plan.new_planes(self.second_output.out) if self.second_output is not None else None
        reads = (x,) if residual is None else (x, residual)
        writes = tuple(buffer for buffer in (out, second) if buffer is not None)
        plan.emit(ConvStep(self, reads, writes, x, out, residual, second, stride))


@operation()
@dataclass(frozen=True, eq=False)
class ConvStep(Step):
    """One convolution. With a `band`, it is computed so many rows at a time, together with its `followers`."""

    node: Conv
    x: Buffer
    out: Buffer | None
    residual: Buffer | None
    second_output: Buffer | None
    stride: tuple[int, int]
    band: int = 0
    followers: int = 0

    struct: ClassVar[Fields] = {
        "x": PLANES,
        "out": PLANES,
        "residual": PLANES,
        "second": PLANES,  # the second output
        "entries": OFFSET,  # struct entry in kernel order, or struct four
        "starts": OFFSET,  # int32: where each (block, group) starts in entries, in steps of tile_channels
        "bases": OFFSET,  # int32: where the first channel of each block lies, in bytes
        "order": OFFSET,  # int32: the output channel of each (block, group, member), if a group has several
        "parts": OFFSET,  # int32: the first group of each thread, if threads split the channels
        "bias": OFFSET,  # float per output channel
        "weight_scale": OFFSET,  # float per output channel: the value of one step of an 8-bit weight
        "scale": OFFSET,  # float per output channel, for the second output
        "shift": OFFSET,
        "mask": OFFSET,  # ivec per vector of pixels, if the regions are larger than the image
        "scratch": OFFSET,  # in the arena: partial sums between blocks of input channels
        "halo_buffer": OFFSET,  # in the arena: rows of `out` that other slices need
        "second_halo_buffer": OFFSET,
        "rows": I32,  # of the output's region
        "cols": I32,
        "channels": I32,  # of the output
        "groups": I32,  # of output channels
        "blocks": I32,  # of input channels
        "tile_channels": I32,  # output channels, rows and columns that are held in registers
        "tile_rows": I32,
        "tile_cols": I32,
        "stride_rows": I32,
        "stride_cols": I32,
        "channel_split": I32,  # enum channel_split: which tiles have their channels split among threads
        "followers": I32,  # convolutions after this one that are computed with it, band by band
        "band": I32,  # rows of a band
        "prefetch": I32,  # whether the output is too large for the cache
        "column_order": I32,  # whether a tile has more input in common with the tile below than with the next one
        "variant": I32,  # number of the kernel that is specialized for this layer, or 0
        "fills_halo_buffers": I32,  # whether that kernel also writes the halo buffers and the padding
        "act": ACTIVATE,
        "second_act": ACTIVATE,
    }

    @property
    def overwritable(self) -> tuple[Buffer, ...]:
        """The residual, unless the windows read it as well."""
        return () if self.residual is None or self.residual.whole is self.x.whole else (self.residual,)

    def call(self, lowering: Lowering) -> dict[str, Any]:
        """Return the fields of `struct conv`."""
        node, tile, put = self.node, lowering.tiles[self], lowering.constants.put
        rows, cols = region_of(self)
        problem = problem_of(self, lowering.lanes, lowering.threads)
        # For all rows: threads that work on one image do not use bands.
        split = replace(problem, rows=rows, cols=cols).channel_split(tile)
        weights, blocks = self._weights(lowering, tile, lowering.threads if split else 1)
        second = node.second_output
        return {
            "x": lowering.windows(self.x, node.padding),
            "out": lowering.planes(self.out),
            "residual": lowering.planes(self.residual),
            "second": lowering.planes(self.second_output),
            "entries": put(weights.entries),
            "starts": put(weights.starts),
            "bases": put(weights.bases * lowering.vector),
            "order": 0 if tile.channels == 1 else put(_padded_order(weights, tile)),
            "parts": put(weights.parts),
            "bias": lowering.floats(node.bias),
            "weight_scale": lowering.weight_scales(node.weight),
            "scale": lowering.floats(None if second is None else second.scale_or_ones),
            "shift": lowering.floats(None if second is None else second.shift_or_zeros),
            "mask": lowering.mask(self.writes[0]),
            "scratch": lowering.arena.size,
            "halo_buffer": lowering.halo_buffer(self.out),
            "second_halo_buffer": lowering.halo_buffer(self.second_output),
            "rows": rows,
            "cols": cols,
            "channels": node.out.channels,
            "groups": weights.groups,
            "blocks": blocks,
            "tile_channels": tile.channels,
            "tile_rows": tile.rows,
            "tile_cols": tile.cols,
            "stride_rows": self.stride[0],
            "stride_cols": self.stride[1],
            "channel_split": split,
            "followers": self.followers,
            "band": self.band,
            "prefetch": self.out is not None and self.out.whole.nbytes(lowering.lanes) > LARGE,
            "column_order": node.kernel[0] > self.stride[0],
            "act": node.activation.struct,
            "second_act": (IDENTITY if second is None else second.activation).struct,
        }

    def _weights(self, lowering: Lowering, tile: Tile, parts: int) -> tuple[SparseWeights, int]:
        """Return the weights in kernel order, and the number of blocks of input channels."""
        node, x = self.node, self.x.planes
        assert x is not None
        blocks = max(tile.blocks, fewest_blocks(node, x, lowering.weights))
        if blocks > 1:
            size = node.out.channels * tile.vectors * lowering.vector * lowering.threads
            lowering.scratch = max(lowering.scratch, size)
        unit = lowering.vector if lowering.weights == "fp32" else 1
        options = {"group_size": tile.channels, "blocks": blocks, "parts": parts}
        return lowering.memo(_sparse_weights, node, x, lowering.weights, unit, **options), blocks


def _sparse_weights(
    node: Conv, x: PlaneLayout, weights: Format, unit: int, *, group_size: int, blocks: int, parts: int
) -> SparseWeights:
    found = non_zeros(node.weight, node.groups, node.dilation, x, weights)
    return sparse_weights(found, weights, unit, group_size=group_size, blocks=blocks, parts=parts)


def _padded_order(weights: SparseWeights, tile: Tile) -> Any:
    """Repeat the last group: kernels prefetch the channels of the group after the current one."""
    return np.pad(weights.order.reshape(-1), (0, tile.channels), mode="edge")


def fewest_blocks(node: Conv, x: PlaneLayout, weights: Format) -> int:
    """Return the fewest blocks of input channels in which all offsets fit the format."""
    if weights == "fp32":
        return 1
    reach = node.window.reach
    channels = (FARTHEST[weights] - reach[0] * x.row_pitch - reach[1]) // x.pitch
    if channels < 1:
        raise ValueError(f"{node.name}: a channel of {x.height} x {x.width} pixels is too large for 16-bit offsets")
    return -(-node.x.channels // channels)


@lowers("index_select")
def _index_select(call: Call) -> None:
    """Select output channels of the layer before, as `regrow.shrink` does: select rows of its weights."""
    index, x = call.constant("index"), call.value("self")
    layer = next((made for made in call.graph.nodes if made.out is x), None)
    alone = len(call.args["self"].users) == 1
    channels = call.args["dim"] % (len(x.shape) + 1) == 1
    if index is None or not channels or not alone or not isinstance(layer, Conv | Linear):
        raise call.unsupported(
            "The engine selects channels (dim=1) by a constant index, from a convolution or linear layer that nothing "
            "else reads."
        )
    if isinstance(layer, Conv) and layer.groups > 1:
        raise call.unsupported("The convolution that it reads has groups.")
    rows = index.long()
    call.graph.nodes.remove(layer)
    selected = replace(layer, out=call.new_value(), weight=layer.weight[rows], bias=layer.bias[rows])
    call.graph.nodes.append(selected)


def conv_steps(schedule: Schedule) -> list[ConvStep]:
    """Return the steps of a schedule that take a tile."""
    return [step for step in schedule.steps if isinstance(step, ConvStep)]
