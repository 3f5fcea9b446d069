"""The few node types that every network is reduced to before it is planned.

Shapes leave out the batch: `(C, H, W)` for images, `(F,)` for features. Weights are kept in float64 until the
plan is written, so that folding batch norms costs no accuracy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray


class Act(IntEnum):
    """Element-wise functions; the numbers are those of `enum activation` in kernels.c."""

    NONE = 0
    RELU = 1
    CLAMP = 2
    SIGMOID = 3
    SILU = 4
    HARDSIGMOID = 5
    HARDSWISH = 6


@dataclass(frozen=True)
class Activation:
    """An element-wise function; `low` and `high` are the bounds of a clamp."""

    kind: Act = Act.NONE
    low: float = 0.0
    high: float = 0.0

    def __bool__(self) -> bool:
        return self.kind is not Act.NONE


IDENTITY = Activation()
RELU = Activation(Act.RELU)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that flows between nodes, compared by identity."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """How many planes (or features) it has."""
        return self.shape[0]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width; features count as one pixel."""
        return (self.shape[1], self.shape[2]) if len(self.shape) == 3 else (1, 1)

    @property
    def pixels(self) -> int:
        """How many pixels each channel has."""
        return self.size[0] * self.size[1]

    @property
    def numel(self) -> int:
        """How many numbers it holds."""
        return self.channels * self.pixels


@dataclass(frozen=True, eq=False)
class Node:
    """Something that computes `out`; `name` is the module it came from."""

    name: str
    out: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values this node reads."""
        return ()

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values this node writes."""
        return (self.out,)


@dataclass(frozen=True, eq=False)
class Input(Node):
    """The image or feature vector given by the caller."""


@dataclass(frozen=True, eq=False)
class Unary(Node):
    """A node with one input."""

    x: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values it reads."""
        return (self.x,)


@dataclass(frozen=True, eq=False)
class Affine(Unary):
    """`activation(scale[c] * x + shift[c])`: a batch norm that could not be folded, or an activation alone."""

    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    activation: Activation = IDENTITY


@dataclass(frozen=True, eq=False)
class Conv(Unary):
    """`y = activation(conv(x) + bias + residual)`; a tail writes `affine(y)` besides, in the same pass."""

    weight: torch.Tensor
    bias: torch.Tensor
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    activation: Activation = IDENTITY
    residual: Value | None = None
    tail: Affine | None = None
    keeps_out: bool = True

    @property
    def kernel(self) -> tuple[int, int]:
        """Height and width of the window."""
        return (self.weight.shape[2], self.weight.shape[3])

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values it reads."""
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """`out` is not written when only the tail is read (a pre-activation network's last block)."""
        kept = (self.out,) if self.keeps_out else ()
        return kept if self.tail is None else (*kept, self.tail.out)


@dataclass(frozen=True, eq=False)
class Linear(Unary):
    """`activation(weight @ x + bias)` on features."""

    weight: torch.Tensor
    bias: torch.Tensor
    activation: Activation = IDENTITY


@dataclass(frozen=True, eq=False)
class Binary(Node):
    """`activation(a + b)` or `activation(a * b)`; a `b` of one pixel is broadcast over the image."""

    op: Literal["add", "mul"]
    a: Value
    b: Value
    activation: Activation = IDENTITY

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values it reads."""
        return (self.a, self.b)


@dataclass(frozen=True, eq=False)
class Pool(Unary):
    """Maximum or average over windows; `counts_padding` as in torch's `count_include_pad`."""

    op: Literal["max", "avg"]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    counts_padding: bool = True


@dataclass(frozen=True, eq=False)
class Mean(Unary):
    """The mean over all pixels of each channel."""


@dataclass(frozen=True, eq=False)
class Reshape(Unary):
    """The same numbers in row-major order, in another shape."""


@dataclass(frozen=True, eq=False)
class Concat(Node):
    """Channels (or features) one after another."""

    parts: tuple[Value, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values it reads."""
        return self.parts


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can run, and the value that the caller gets."""

    nodes: tuple[Node, ...]
    output: Value
    uses: Counter[Value] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uses", count_uses(self.nodes, self.output))

    @property
    def input(self) -> Value:
        """What the caller gives."""
        return next(node.out for node in self.nodes if isinstance(node, Input))

    def weighted(self) -> Iterator[Conv | Linear]:
        """The nodes that hold weights."""
        return (node for node in self.nodes if isinstance(node, Conv | Linear))


def count_uses(nodes: tuple[Node, ...], output: Value) -> Counter[Value]:
    """How often each value is read; being the network's output counts as one."""
    uses = Counter(value for node in nodes for value in node.inputs)
    uses[output] += 1
    return uses


def macs(node: Node) -> int:
    """Multiply-accumulates for one image that the node's non-zero weights need."""
    if not isinstance(node, Conv | Linear):
        return 0
    return int(torch.count_nonzero(node.weight)) * node.out.pixels


def pool_weights(node: Pool) -> NDArray[np.float64]:
    """One over the number of pixels that torch counts in each window of an average pooling."""
    counts = []
    for size, out, k, s, p in zip(node.x.size, node.out.size, node.kernel, node.stride, node.padding, strict=True):
        first = np.arange(out) * s - p
        last = np.minimum(first + k, size + p)
        if not node.counts_padding:
            first, last = np.maximum(first, 0), np.minimum(last, size)
        counts.append(last - first)
    return 1.0 / np.outer(*counts)
