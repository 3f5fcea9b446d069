"""Fully connected layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from regrow.engine.codegen.structs import ABSENT, ACTIVATE, I32, OFFSET, Fields
from regrow.engine.frontend.graph import Value, WeightedNode
from regrow.engine.ops.activations import IDENTITY, Activation
from regrow.engine.ops.base import Flat, KernelNode, operation
from regrow.engine.plan.steps import Buffer
from regrow.engine.plan.weights import linear_weights

if TYPE_CHECKING:
    from regrow.engine.frontend.torch_export import Call
    from regrow.engine.plan.lower import Lowering


@operation("linear")
@dataclass(frozen=True, eq=False)
class Linear(WeightedNode, KernelNode):
    """`activation(weight @ x + bias)` on features."""

    activation: Activation = IDENTITY

    on_features: ClassVar[bool] = True
    writes_to_caller: ClassVar[bool] = True
    layout = Flat()
    struct: ClassVar[Fields] = {
        "x": OFFSET,
        "out": OFFSET,
        "weights": OFFSET,  # struct entry; dense: blocks of LANES outputs, column by column
        "starts": OFFSET,  # int32: where the weights of each output start; dense: ABSENT
        "bias": OFFSET,
        "weight_scale": OFFSET,
        "inputs": I32,
        "outputs": I32,
        "dense": I32,
        "act": ACTIVATE,
    }

    @classmethod
    def lower(cls, call: Call) -> None:
        """Lower `linear`."""
        weight, x = call.weight("weight"), call.value("input")
        if len(x.shape) != 1:
            raise call.unsupported("It is applied to images; the engine applies it to (batch, features) only.")
        call.add(cls, x, weight, read_bias(call, weight))

    def reference(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Compute the output with torch."""
        y = F.linear(x.flatten(1), *self.float_weights)
        return self.activation(y).reshape(-1, *self.out.shape)

    def never_negative(self, value: Value) -> bool:
        """Whether the activation returns no negative values."""
        return self.activation.never_negative

    def call(self, lowering: Lowering, x: Buffer, out: Buffer) -> dict[str, Any]:  # type: ignore[override]
        """Return the fields of `struct linear`."""
        outputs, inputs = self.weight.shape
        weights, starts = lowering.memo(linear_weights, self, lowering.weights, lowering.lanes)
        return {
            "x": lowering.at(x),
            "out": lowering.at(out),
            "weights": lowering.constants.put(weights),
            "starts": ABSENT if starts is None else lowering.constants.put(starts),
            "bias": lowering.floats(self.bias),
            "weight_scale": lowering.weight_scales(self.weight),
            "inputs": inputs,
            "outputs": outputs,
            "dense": starts is None,
            "act": self.activation.struct,
        }


def read_bias(call: Call, weight: Tensor) -> Tensor:
    """Return the bias of a convolution or linear layer; zeros if it has none."""
    return weight.new_zeros(weight.shape[0]) if call.args["bias"] is None else call.weight("bias")
