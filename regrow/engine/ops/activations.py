"""Activation functions: one entry each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regrow.engine.codegen import structs


@dataclass(frozen=True)
class Function:
    """An element-wise function.

    `torch` is the ATen operation that it is made from, for calls with these `arguments`. `c` is an expression of a
    vector `x` with the functions of vector_math.h; those with bounds also have `low` and `high`.
    """

    torch: str
    reference: Callable[..., Tensor]
    c: str
    never_negative: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


FUNCTIONS = {
    "relu": Function("relu", F.relu, "relu(x)", never_negative=True),  # first: kernels treat it specially
    "clamp": Function("", torch.clamp, "min(high, max(low, x))"),
    "sigmoid": Function("sigmoid", torch.sigmoid, "sigmoid(x)", never_negative=True),
    "silu": Function("silu", F.silu, "x * sigmoid(x)"),
    "hardsigmoid": Function("hardsigmoid", F.hardsigmoid, "hard_sigmoid(x)", never_negative=True),
    "hardswish": Function("hardswish", F.hardswish, "x * hard_sigmoid(x)"),
    "gelu": Function("gelu", F.gelu, "x * normal_cdf(x)", arguments={"approximate": "none"}),
    "gelu_tanh": Function(
        "gelu",
        partial(F.gelu, approximate="tanh"),
        "x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x))",  # 0.5 (1 + tanh(u)) is sigmoid(2 u)
        arguments={"approximate": "tanh"},
    ),
}
"""By name: `enum activation` of plan.h, from 1 on."""


@dataclass(frozen=True)
class Activation:
    """An entry of `FUNCTIONS`, or the identity; `low` and `high` are the bounds of a clamp."""

    name: str = ""
    low: float = 0.0
    high: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.name)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it with torch."""
        if self.name == "clamp":
            return x.clamp(self.low, self.high)
        return FUNCTIONS[self.name].reference(x) if self else x

    @property
    def never_negative(self) -> bool:
        """Whether all results are at least zero."""
        return bool(self) and (FUNCTIONS[self.name].never_negative or (self.name == "clamp" and self.low >= 0))

    @property
    def struct(self) -> Any:
        """`struct activate` of plan.h."""
        return structs.Activate(1 + list(FUNCTIONS).index(self.name) if self else 0, self.low, self.high)


IDENTITY = Activation()
RELU = Activation("relu")
