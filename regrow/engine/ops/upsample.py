"""Nearest and bilinear upsampling (`F.interpolate`, `nn.Upsample`), also to smaller sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from regrow.engine.codegen.structs import ABSENT, I32, OFFSET, Fields
from regrow.engine.ops.base import KernelNode, NodeStep, Unary, lowers, operation
from regrow.engine.plan.steps import Buffer

if TYPE_CHECKING:
    from regrow.engine.frontend.torch_export import Call
    from regrow.engine.plan.lower import Lowering
    from regrow.engine.plan.schedule import Scheduler

Floats = NDArray[np.float64]


@operation()
@dataclass(frozen=True, eq=False)
class Upsample(Unary, KernelNode):
    """Every output pixel is one pixel of the input, or a weighted sum of four.

    `scales` are the factors given by the user for rows and columns; without them, they follow from the sizes.
    """

    mode: Literal["nearest", "bilinear"]
    scales: tuple[float, float] | None = None
    align_corners: bool = False

    struct: ClassVar[Fields] = {
        "x": OFFSET,
        "out": OFFSET,
        "table": OFFSET,  # int32 [taps][count]: positions in `x`, -1 outside of the image
        "weights": OFFSET,  # float [4][count]; ABSENT: there is one tap
        "count": I32,  # floats of an output channel
        "channels": I32,
        "x_pitch": I32,  # floats from channel to channel
        "out_pitch": I32,
    }

    def reference(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Compute the output with torch."""
        corners = self.align_corners if self.mode == "bilinear" else None
        if self.scales is None:
            y: Tensor = F.interpolate(x, self.out.size, mode=self.mode, align_corners=corners)
        else:
            y = F.interpolate(x, scale_factor=self.scales, mode=self.mode, align_corners=corners)
        return y

    def schedule(self, plan: Scheduler) -> None:
        """Append one step, which reads any layout and also fills the halo of its output."""
        out = plan.home(self.out)
        plan.steps.append(NodeStep(self, (plan.first_version(self.x),), (out,)))
        plan.keep(self.out, out)

    def call(self, lowering: Lowering, x: Buffer, out: Buffer) -> dict[str, Any]:  # type: ignore[override]
        """Return the fields of `struct upsample`."""
        rows, cols = out.cells.coordinates(halo=True)
        inside = out.cells.contains(rows, cols)
        taps = [(y, x_, wy * wx) for y, wy in self._taps(0, rows) for x_, wx in self._taps(1, cols)]
        table = np.stack([np.where(inside, x.cells.index(y, x_), -1).reshape(-1) for y, x_, _ in taps])
        weights = np.stack([weight.reshape(-1) for *_, weight in taps])
        put = lowering.constants.put
        return {
            "x": lowering.at(x),
            "out": lowering.at(out),
            "table": put(table.astype(np.int32)),
            "weights": ABSENT if len(taps) == 1 else put(weights.astype(np.float32)),
            "count": table.shape[1],
            "channels": out.channels,
            "x_pitch": lowering.channel_floats(x),
            "out_pitch": lowering.channel_floats(out),
        }

    def _taps(self, axis: int, position: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], Floats]]:
        """Return the input positions that output positions read along an axis, and their weights, as torch does."""
        size, out = self.x.size[axis], self.out.size[axis]
        # torch ignores a given scale if the size stays the same and, for nearest, if it doubles.
        given = None if out == size or (self.mode == "nearest" and out == 2 * size) else self.scales
        ratio = np.float32(size) / np.float32(out) if given is None else np.float32(1 / given[axis])
        position = np.clip(position, 0, out - 1)
        if self.mode == "nearest":
            source = np.floor(position.astype(np.float32) * ratio).astype(np.int64)
            return [(np.minimum(source, size - 1), np.ones(position.shape))]
        if self.align_corners:
            exact = position * np.float32((size - 1) / (out - 1) if out > 1 else 0)
        else:
            exact = np.maximum(ratio * (position.astype(np.float32) + np.float32(0.5)) - np.float32(0.5), 0)
        first = np.minimum(np.floor(exact).astype(np.int64), size - 1)
        fraction = (exact - first).astype(np.float64)
        return [(first, 1 - fraction), (np.minimum(first + 1, size - 1), fraction)]


@lowers("upsample_nearest2d", "upsample_bilinear2d")
def _upsample(call: Call) -> None:
    if "scale_factors" not in call.args:
        raise call.unsupported("Call it through F.interpolate or nn.Upsample.")
    given = call.args["scale_factors"]
    scales = None if given is None else (float(given[0]), float(given[1]))
    mode = "nearest" if call.name == "upsample_nearest2d" else "bilinear"
    call.add(Upsample, call.value("input"), mode, scales, call.args.get("align_corners", False))
