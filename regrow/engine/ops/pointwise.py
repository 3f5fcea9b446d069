"""Element-wise operations: batch norms, activations, sums and products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, fx

from regrow.engine.codegen.structs import ABSENT, ACTIVATE, I32, OFFSET, PLANES, Fields
from regrow.engine.frontend.graph import Value
from regrow.engine.ops.activations import FUNCTIONS, IDENTITY, RELU, Activation
from regrow.engine.ops.base import KernelNode, Same, Unary, lowers, operation
from regrow.engine.plan.steps import Buffer

if TYPE_CHECKING:
    from regrow.engine.frontend.torch_export import Call
    from regrow.engine.plan.lower import Lowering


@operation()
@dataclass(frozen=True, eq=False)
class Pointwise(KernelNode):
    """Base class of `activation(scale * a + shift)`, `activation(a + b)` and `activation(a * b)`."""

    layout = Same()
    in_place: ClassVar[bool] = True
    on_features: ClassVar[bool] = True
    activation: Activation = field(default=IDENTITY, kw_only=True)

    struct: ClassVar[Fields] = {
        "a": PLANES,
        "b": PLANES,
        "out": PLANES,
        "scale": OFFSET,  # float per channel
        "shift": OFFSET,
        "mask": OFFSET,
        "channels": I32,  # features are one channel, whose scale and shift are one float per lane
        "rows": I32,
        "cols": I32,
        "multiply": I32,
        "broadcast": I32,
        "features": I32,
        "act": ACTIVATE,
    }

    def never_negative(self, value: Value) -> bool:
        """Whether the activation returns no negative values."""
        return self.activation.never_negative

    def call(self, lowering: Lowering, *buffers: Buffer) -> dict[str, Any]:
        """Return the fields of `struct pointwise`, with one operand or two."""
        a, *others, out = buffers
        b = others[0] if others else None
        planes = out.planes
        shape = (1, 1, -(-out.channels * out.pixels // lowering.lanes))
        if planes is not None:
            shape = (out.channels, planes.grid.rows, planes.grid.cols)
        return {
            "a": lowering.planes(a),
            "b": lowering.planes(b),
            "out": lowering.planes(out),
            "scale": ABSENT,
            "shift": ABSENT,
            "mask": lowering.mask(out),
            "channels": shape[0],
            "rows": shape[1],
            "cols": shape[2],
            "broadcast": b is not None and b.planes is None and planes is not None,
            "features": planes is None,
            "act": self.activation.struct,
        }


@operation("batch_norm")
@dataclass(frozen=True, eq=False)
class Affine(Unary, Pointwise):
    """`activation(scale[c] * x + shift[c])`: a batch norm that could not be folded, or an activation alone."""

    scale: Tensor | None = None
    shift: Tensor | None = None

    @classmethod
    def lower(cls, call: Call) -> None:
        """Lower `batch_norm`."""
        if call.args["training"]:
            raise call.unsupported("It uses the statistics of the batch (track_running_stats=False).")
        scale = torch.rsqrt(call.weight("running_var") + call.args["eps"])
        if call.args["weight"] is not None:
            scale = scale * call.weight("weight")
        shift = -call.weight("running_mean") * scale
        if call.args["bias"] is not None:
            shift = shift + call.weight("bias")
        call.add(cls, call.value("input"), scale, shift)

    @property
    def scale_or_ones(self) -> Tensor:
        """The scale of every channel."""
        return torch.ones(self.x.channels, device="cpu") if self.scale is None else self.scale

    @property
    def shift_or_zeros(self) -> Tensor:
        """The shift of every channel."""
        return torch.zeros(self.x.channels, device="cpu") if self.shift is None else self.shift

    def reference(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Scale, shift and activate with torch."""
        shape = (-1, *(1 for _ in self.x.shape[1:]))
        if self.scale is not None:
            x = x * self.scale.float().reshape(shape)
        if self.shift is not None:
            x = x + self.shift.float().reshape(shape)
        return self.activation(x)

    def splits_by_rows(self) -> bool:
        """Rows can always be split: every pixel is computed independently."""
        return True

    def call(self, lowering: Lowering, *buffers: Buffer) -> dict[str, Any]:
        """Return the fields of `struct pointwise`."""
        scale, shift = lowering.floats(self.scale), lowering.floats(self.shift)
        return super().call(lowering, *buffers) | {"scale": scale, "shift": shift}


@dataclass(frozen=True, eq=False)
class Binary(Pointwise):
    """`activation(a + b)` or `activation(a * b)`; a `b` of one pixel is broadcast over the image."""

    op: Literal["add", "mul"]
    a: Value
    b: Value

    def reference(self, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]
        """Combine and activate with torch."""
        return self.activation(a + b if self.op == "add" else a * b)

    def splits_by_rows(self) -> bool:
        """Whether `b` is not broadcast: then every pixel is computed independently."""
        return self.a.shape == self.b.shape

    def call(self, lowering: Lowering, *buffers: Buffer) -> dict[str, Any]:
        """Return the fields of `struct pointwise`."""
        return super().call(lowering, *buffers) | {"multiply": self.op == "mul"}


@lowers(*sorted({function.torch for function in FUNCTIONS.values()} - {""}))
def _activation(call: Call) -> None:
    for name, function in FUNCTIONS.items():
        if function.torch == call.name and function.arguments.items() <= call.args.items():
            call.add(Affine, call.value("self"), activation=Activation(name))
            return
    options = {name: value for name, value in call.args.items() if not isinstance(value, fx.Node)}
    raise call.unsupported(f"No entry of regrow.engine.ops.activations has its arguments {options}.")


@lowers("clamp", "hardtanh")
def _clamp(call: Call) -> None:
    low, high = call.args.get("min", call.args.get("min_val")), call.args.get("max", call.args.get("max_val"))
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        raise call.unsupported("Its bounds are tensors; the engine clamps between numbers.")
    low, high = -inf if low is None else float(low), inf if high is None else float(high)
    activation = RELU if (low, high) == (0.0, inf) else Activation("clamp", low, high)
    call.add(Affine, call.value("self"), activation=activation)


@lowers("relu6")
def _relu6(call: Call) -> None:
    call.add(Affine, call.value("self"), activation=Activation("clamp", 0.0, 6.0))


def _arithmetic(op: str) -> Callable[[Call], None]:
    """Lower an operation between two images, or between an image and one constant per channel."""

    def lower(call: Call) -> None:
        if call.args.get("alpha", 1) != 1:
            raise call.unsupported(f"alpha must be 1, got {call.args['alpha']}.")
        if call.args.get("rounding_mode") is not None:
            raise call.unsupported(f"rounding_mode must be None, got {call.args['rounding_mode']!r}.")
        first, second = "self", "other"
        if op in ("add", "mul") and call.constant("self") is not None:
            first, second = second, first
        x, constant = call.value(first), call.constant(second)
        if constant is not None:
            constant = _per_channel(call, x, constant)
            constant = {"sub": -constant, "div": 1 / constant}.get(op, constant)
            scale, shift = (None, constant) if op in ("add", "sub") else (constant, None)
            call.add(Affine, x, scale, shift)
        elif op in ("sub", "div"):
            raise call.unsupported("The engine adds and multiplies images, but does not subtract or divide them.")
        else:
            call.add(Binary, op, *_broadcast(call, x, call.value(second)))

    return lower


for _op in ("add", "mul", "sub", "div"):
    lowers(_op)(_arithmetic(_op))


def _per_channel(call: Call, x: Value, constant: Tensor) -> Tensor:
    allowed = [(), (1,), (1, *x.shape[:1], *(1 for _ in x.shape[1:])), (*x.shape[:1], *(1 for _ in x.shape[1:]))]
    if constant.numel() != 1 and tuple(constant.shape) not in allowed:
        raise call.unsupported(f"A constant of shape {tuple(constant.shape)} is not one number per channel.")
    return constant.reshape(-1).expand(x.channels)


def _broadcast(call: Call, a: Value, b: Value) -> tuple[Value, Value]:
    if a.shape == b.shape:
        return a, b
    wide, narrow = (a, b) if a.numel > b.numel else (b, a)
    if len(a.shape) == len(b.shape) == 3 and wide.channels == narrow.channels and narrow.pixels == 1:
        return wide, narrow
    raise call.unsupported(f"Shapes {a.shape} and {b.shape} are neither equal nor one value per channel.")
