"""Maximum and average over windows, and the mean over whole images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from regrow.engine.codegen.structs import ABSENT, F32, I32, OFFSET, PLANES, Fields
from regrow.engine.ops.base import KernelNode, NodeStep, Unary, lowers, operation
from regrow.engine.plan.layout import PlaneLayout, Window
from regrow.engine.plan.steps import Buffer

if TYPE_CHECKING:
    from regrow.engine.frontend.torch_export import Call
    from regrow.engine.plan.lower import Lowering
    from regrow.engine.plan.schedule import Scheduler


@operation()
@dataclass(frozen=True, eq=False)
class Pool(Unary, KernelNode):
    """Maximum or average over windows; `counts_padding` is torch's `count_include_pad`."""

    op: Literal["max", "avg"]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    counts_padding: bool = True

    struct: ClassVar[Fields] = {
        "x": PLANES,
        "out": PLANES,
        "weights": OFFSET,  # of an average: one vector per vector of pixels, or ABSENT for `scale`
        "mask": OFFSET,
        "channels": I32,
        "rows": I32,
        "cols": I32,
        "kernel_rows": I32,
        "kernel_cols": I32,
        "stride_rows": I32,
        "stride_cols": I32,
        "maximum": I32,
        "scale": F32,
    }

    @property
    def window(self) -> Window:
        """The window that it moves over `x`."""
        return Window(self.kernel, self.stride, self.padding, infinite=self.op == "max" and self._overhangs())

    def _overhangs(self) -> bool:
        """Whether a window reaches out of the image."""
        sides = zip(self.x.size, self.out.size, self.kernel, self.stride, self.padding, strict=True)
        return any(p > 0 or (o - 1) * s - p + k > n for n, o, k, s, p in sides)

    def reference(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Compute the output with torch."""
        padding = self.window.padding_for(self.x.size, self.out.size)
        if self.op == "max":
            return F.max_pool2d(F.pad(x, padding, value=-torch.inf), self.kernel, self.stride)
        sums = F.avg_pool2d(F.pad(x, padding), self.kernel, self.stride, divisor_override=1)
        return sums * torch.from_numpy(self._weights()).float()

    def _weights(self) -> NDArray[np.float64]:
        """Return one over the number of pixels that torch counts in each window of an average."""
        counts = []
        for size, out, k, s, p in zip(self.x.size, self.out.size, self.kernel, self.stride, self.padding, strict=True):
            first = np.arange(out) * s - p
            last = np.minimum(first + k, size + p)
            if not self.counts_padding:
                first, last = np.maximum(first, 0), np.minimum(last, size)
            counts.append(last - first)
        return 1.0 / np.outer(*counts)

    def splits_by_rows(self) -> bool:
        """Rows can be split if the stride divides them, and all windows of an average count the same pixels."""
        if self.op == "avg" and (self.kernel[0] != self.stride[0] or self.padding[0]):
            return False
        return self.out.pixels > 1 and self.x.size[0] == self.stride[0] * self.out.size[0]

    def schedule(self, plan: Scheduler) -> None:
        """Append one step; a maximum over single pixels is done by the copy, if the input must be copied anyway."""
        out = plan.new_planes(self.out)
        if self.op == "max" and plan.strides_while_copying(self):
            plan.keep(self.out, plan.copy(plan.first_version(self.x), out, self, step=self.stride))
        else:
            plan.emit(NodeStep(self, (plan.window_input(self),), (out,)))

    def call(self, lowering: Lowering, x: Buffer, out: Buffer) -> dict[str, Any]:  # type: ignore[override]
        """Return the fields of `struct pool`."""
        assert out.planes is not None
        weights = self._weights()
        varies = self.op == "avg" and not np.all(weights == weights[0, 0])
        return {
            "x": lowering.windows(x, self.padding),
            "out": lowering.planes(out),
            "weights": lowering.constants.put(_in_planes(weights, out.planes)) if varies else ABSENT,
            "mask": lowering.mask(out),
            "channels": out.channels,
            "rows": out.planes.grid.rows,
            "cols": out.planes.grid.cols,
            "kernel_rows": self.kernel[0],
            "kernel_cols": self.kernel[1],
            "stride_rows": self.stride[0],
            "stride_cols": self.stride[1],
            "maximum": self.op == "max",
            "scale": float(weights[0, 0]),
        }


def _in_planes(image: NDArray[np.float64], planes: PlaneLayout) -> NDArray[np.float32]:
    y, x = planes.coordinates(halo=False)
    inside = planes.contains(y, x)
    return np.where(inside, image[np.where(inside, y, 0), np.where(inside, x, 0)], 0).astype(np.float32)


@operation("mean")
@dataclass(frozen=True, eq=False)
class Mean(Unary, KernelNode):
    """The mean over all pixels of each channel."""

    struct: ClassVar[Fields] = {"x": PLANES, "out": OFFSET, "channels": I32, "rows": I32, "cols": I32, "scale": F32}

    @classmethod
    def lower(cls, call: Call) -> None:
        """Lower `mean`."""
        x, dims = call.value("self"), call.args.get("dim") or ()
        if len(x.shape) != 3 or {int(d) % 4 for d in dims} != {2, 3}:
            got = f"dim={tuple(dims)}" if dims else "all dimensions"
            raise call.unsupported(f"The engine averages over height and width (dim=(2, 3)), got {got}.")
        call.add(cls, x)

    def reference(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Compute the output with torch."""
        return x.mean((2, 3)).reshape(-1, *self.out.shape)

    def splits_by_rows(self) -> bool:
        """The first thread adds up the means of all slices."""
        return self.x.pixels > 1

    def schedule(self, plan: Scheduler) -> None:
        """Append one step, from planes to features."""
        plan.emit(NodeStep(self, (plan.home_version(self.x, self),), (plan.new_flat(self.out),)))

    def call(self, lowering: Lowering, x: Buffer, out: Buffer) -> dict[str, Any]:  # type: ignore[override]
        """Return the fields of `struct mean`."""
        assert x.planes is not None
        return {
            "x": lowering.planes(x),
            "out": lowering.at(out),
            "channels": x.channels,
            "rows": x.planes.grid.rows,
            "cols": x.planes.grid.cols,
            "scale": 1 / (lowering.slices * x.pixels),
        }


def _stride(call: Call) -> tuple[int, int]:
    return call.pair("stride") if call.args["stride"] else call.pair("kernel_size")


@lowers("max_pool2d")
def _max_pool2d(call: Call) -> None:
    if call.pair("dilation") != (1, 1):
        raise call.unsupported(f"Its dilation must be 1, got {call.args['dilation']}.")
    call.add(Pool, call.value("self"), "max", call.pair("kernel_size"), _stride(call), call.pair("padding"))


@lowers("avg_pool2d")
def _avg_pool2d(call: Call) -> None:
    if call.args["divisor_override"] is not None:
        raise call.unsupported("divisor_override must be None.")
    window = (call.pair("kernel_size"), _stride(call), call.pair("padding"))
    call.add(Pool, call.value("self"), "avg", *window, call.args["count_include_pad"])


@lowers("adaptive_avg_pool2d")
def _adaptive_avg_pool2d(call: Call) -> None:
    x, wanted = call.value("self"), call.pair("output_size")
    if wanted == (1, 1):
        call.add(Mean, x)
    elif all(size % want == 0 for size, want in zip(x.size, wanted, strict=True)):
        window = (x.size[0] // wanted[0], x.size[1] // wanted[1])
        call.add(Pool, x, "avg", window, window)
    else:
        raise call.unsupported(f"{x.size} does not divide into {wanted} equal windows.")
