"""The graph that a network is reduced to before it is planned: values, and the nodes that compute them.

Shapes leave out the batch: `(C, H, W)` for images, `(F,)` for features. Weights stay in float64 until the plan is
lowered, so that folding batch norms costs no accuracy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from regrow.engine.plan.layout import Window
    from regrow.engine.plan.schedule import Scheduler


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that one node writes and others read, compared by identity."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Number of channels, or of features."""
        return self.shape[0]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width; features count as one pixel."""
        return (self.shape[1], self.shape[2]) if len(self.shape) == 3 else (1, 1)

    @property
    def pixels(self) -> int:
        """Pixels of each channel."""
        return self.size[0] * self.size[1]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.channels * self.pixels


@dataclass(frozen=True, eq=False)
class Node:
    """An operation that computes `out`; `name` is the module it came from.

    The subclasses are in `regrow.engine.ops`, one file each. A subclass has to implement `reference` and `schedule`;
    the other methods have defaults that are always correct.
    """

    name: str
    out: Value

    placeable: ClassVar[bool] = True
    """Whether `out` can be written directly into the larger buffer of a concatenation."""
    on_features: ClassVar[bool] = False
    """Whether it runs on feature vectors, so that one thread can finish a network whose rows were split."""

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """The values it reads: the fields after `out` that are a `Value` or a tuple of them."""
        contents = [getattr(self, each.name) for each in fields(self)[2:]]
        operands = [each for content in contents for each in (content if isinstance(content, tuple) else (content,))]
        return tuple(operand for operand in operands if isinstance(operand, Value))

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values it writes."""
        return (self.out,)

    @property
    def window(self) -> Window | None:
        """The window that it moves over its first input, if it has one."""
        return None

    @property
    def macs(self) -> int:
        """Multiply-accumulates with non-zero weights for one image."""
        return 0

    def reference(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Compute the outputs for a batch with torch: the fallback without a compiler, and the oracle of the tests."""
        raise NotImplementedError(f"{type(self).__name__} does not implement reference()")

    def schedule(self, plan: Scheduler) -> None:
        """Append the steps that compute it."""
        raise NotImplementedError(f"{type(self).__name__} does not implement schedule()")

    def never_negative(self, value: Value) -> bool:
        """Whether all elements of `value`, one of the outputs, are known to be at least zero."""
        return False

    def splits_by_rows(self) -> bool:
        """Whether a slice of the output's rows can be computed from the same slice of the input's rows and a halo."""
        return False


@dataclass(frozen=True, eq=False)
class WeightedNode(Node):
    """A node with weights, one row per output channel, and a bias."""

    x: Value
    weight: Tensor
    bias: Tensor

    @cached_property
    def nonzeros(self) -> int:
        """Number of non-zero weights."""
        return int(self.weight.count_nonzero())

    @property
    def macs(self) -> int:
        """Multiply-accumulates with non-zero weights for one image."""
        return self.nonzeros * self.out.pixels

    @cached_property
    def float_weights(self) -> tuple[Tensor, Tensor]:
        """Weight and bias in float32, for `reference`."""
        return self.weight.float().contiguous(), self.bias.float().contiguous()


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
        """The value that the caller passes."""
        return next(node.out for node in self.nodes if not node.inputs)


def count_uses(nodes: Sequence[Node], output: Value) -> Counter[Value]:
    """How many nodes read each value; being the network's output counts as one."""
    uses = Counter(value for node in nodes for value in node.inputs)
    uses[output] += 1
    return uses
