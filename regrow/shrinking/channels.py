"""Facts about every channel of every tensor in a traced model: tied, pinned or constant. Rules collect them.

A *slot* stands for one channel. Operations that treat channels one by one pass slots on. Operations that combine two
tensors channel by channel tie their slots, so that both are removed or neither is. A channel whose value depends
neither on the input nor on the position is *constant*: it can be removed if its contribution is folded into the layers
that read it. `plan` decides which channels stay, and `rewrite` changes the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from regrow.shrinking.trace import TRANSPOSED


@dataclass(frozen=True)
class Reason:
    """Why a channel stays; `unsupported` if a more capable `shrink` could remove it."""

    text: str
    unsupported: bool = False


@dataclass(frozen=True)
class Channels:
    """The channels of a tensor along `axis`: their slots and their constants (NaN for a channel that varies)."""

    axis: int
    slots: Tensor
    constant: Tensor

    @property
    def varies(self) -> Tensor:
        """Which channels depend on the input or the position."""
        return self.constant.isnan()

    @staticmethod
    def joined(parts: list[Channels]) -> Channels:
        """Concatenate channels with the same axis."""
        slots = torch.cat([part.slots for part in parts])
        return Channels(parts[0].axis, slots, torch.cat([part.constant for part in parts]))

    def varying(self) -> Channels:
        """Return the same channels, none of them constant."""
        return replace(self, constant=torch.full_like(self.constant, torch.nan))


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution or linear layer with its input channels (`source`), output channels (`result`) and zeros.

    `touches[g, o, i]` is True if output o of group g has a non-zero weight for input i. `uniform` is True if constant
    inputs give constant outputs, which is not so with zero padding.
    """

    node: fx.Node
    module: nn.Module
    source: Channels
    result: Channels
    touches: Tensor
    uniform: bool

    @property
    def groups(self) -> int:
        """Number of independent groups of channels."""
        return int(self.touches.shape[0])


@dataclass
class Flow:
    """Everything known about the channels of a model; rules add to it, node by node."""

    values: dict[fx.Node, Any] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    channelwise: list[tuple[fx.Node, Channels]] = field(default_factory=list)
    # Node -> number of the operand to replace by a constant, that constant, and the channels it must follow.
    constants: dict[fx.Node, tuple[int, Channels, Channels | None]] = field(default_factory=dict)
    queried: list[Channels] = field(default_factory=list)
    pins: dict[int, Reason] = field(default_factory=dict)
    opaque: dict[fx.Node, str] = field(default_factory=dict)
    # Slot of a constant channel -> why it varies from some node on.
    blurred: dict[int, Reason] = field(default_factory=dict)
    _parent: list[int] = field(default_factory=list)

    def fresh(self, axis: int, constant: Tensor) -> Channels:
        """Create independent channels with these constants."""
        first = len(self._parent)
        count = len(constant)
        self._parent.extend(range(first, first + count))
        return Channels(axis, torch.arange(first, first + count), constant)

    def pinned(self, axis: int, channels: int, reason: Reason) -> Channels:
        """Create channels of a tensor that is not followed: all vary, and all stay."""
        value = self.fresh(axis, torch.full((channels,), torch.nan, dtype=torch.float64))
        self.pin(value, reason)
        return value

    def pin(self, value: Channels, reason: Reason) -> None:
        """Keep every channel of `value`."""
        for slot in value.slots.tolist():
            self.pins.setdefault(slot, reason)

    def tie(self, a: Channels, b: Channels) -> None:
        """Keep channel i of `a` if and only if channel i of `b` stays."""
        for i, j in zip(a.slots.tolist(), b.slots.tolist(), strict=True):
            self._parent[self._root(i)] = self._root(j)

    def classes(self) -> Tensor:
        """Return for every slot the number of the class of slots that it is tied to."""
        return torch.tensor([self._root(slot) for slot in range(len(self._parent))], dtype=torch.long)

    def _root(self, slot: int) -> int:
        parent = self._parent
        while parent[slot] != slot:
            parent[slot] = parent[parent[slot]]
            slot = parent[slot]
        return slot


OUTSIDE = Reason("comes from outside the layers that are followed")

Rule = Callable[[Flow, fx.Node, Any], Any]
"""Returns the channels of a node's output, given the facts so far, the node, and its module if it calls one."""

RULES: dict[Any, Rule] = {}
"""The rule of each module class, function and method name."""


def rule(*operations: Any) -> Callable[[Rule], Rule]:
    """Register a rule for module classes, functions and method names: `@rule(nn.ReLU, F.relu, "relu")`."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operations, function))
        return function

    return register


class OpaqueError(Exception):
    """The effect of an operation on channels is not known; the message says why."""


@dataclass(frozen=True)
class ShapeQuery:
    """A tensor's shape (`whole`), or its number of channels, which only a view may use, unchanged."""

    source: Channels
    ndim: int
    whole: bool = True


def shape(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's tensor for the example input; empty if it is not a single tensor."""
    meta = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return tuple(getattr(meta, "shape", ()))


def argument(node: fx.Node, position: int, *names: str, default: Any = None) -> Any:
    """Return an argument of a call, passed by position or by one of its names."""
    if len(node.args) > position:
        return node.args[position]
    return next((node.kwargs[name] for name in names if name in node.kwargs), default)


def sizes_of(node: fx.Node) -> tuple[Any, ...]:
    """Return the sizes (or dimensions) passed to a view, reshape or permute, as a tuple or one by one."""
    given: Any = node.args[1:] or tuple(node.kwargs.values())
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], tuple | list) else tuple(given)


def first(node: fx.Node) -> Any:
    """Return the tensor that a node works on."""
    return argument(node, 0, "input", "tensor", "self")


def input_channels(flow: Flow, node: fx.Node) -> Channels | None:
    """Return the channels of the tensor that a node works on; None if it is not followed."""
    value = flow.values.get(first(node))
    if isinstance(value, tuple):
        raise OpaqueError("reads several tensors at once")
    return value


def channels_along(flow: Flow, node: fx.Node, axis: int) -> Channels:
    """Return the channels of the tensor that a node works on, which must be along `axis`."""
    sizes = shape(first(node))
    if not -len(sizes) <= axis < len(sizes):
        raise OpaqueError(f"expects a batch of tensors, got shape {sizes}")
    axis %= len(sizes)
    value = input_channels(flow, node)
    if value is None:
        return flow.pinned(axis, sizes[axis], OUTSIDE)
    if value.axis != axis:
        raise OpaqueError(f"works on dimension {axis} while the channels are dimension {value.axis}")
    return value


def grouped(module: nn.Module, tensor: Tensor | None = None) -> Tensor:
    """Return a layer's weight as (groups, outputs per group, inputs per group, kernel elements)."""
    weight: Any = module.weight if tensor is None else tensor
    groups = int(getattr(module, "groups", 1))
    folded: Tensor = weight.detach().reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return folded.transpose(1, 2) if isinstance(module, TRANSPOSED) else folded


def ungrouped(module: nn.Module, weight: Tensor) -> Tensor:
    """Invert `grouped`: return (groups, outputs, inputs, kernel elements) in the layer's own layout."""
    if isinstance(module, TRANSPOSED):
        weight = weight.transpose(1, 2)
    kernel = tuple(getattr(module, "kernel_size", ()))
    return weight.reshape(-1, weight.shape[2], *kernel)


def layer_constant(module: nn.Module, touches: Tensor, source: Channels, *, uniform: bool) -> Tensor:
    """Return the constants of a layer's outputs: an output is constant if no varying input reaches it."""
    groups, _, inputs = touches.shape
    constant = source.constant.reshape(groups, 1, inputs)
    varies = constant.isnan() if uniform else constant.isnan() | (constant != 0)
    reached = (touches & varies).any(-1)
    sums = grouped(module).double().sum(-1).cpu()
    # A zero weight reads nothing, but nan * 0 is nan.
    emitted = torch.where(touches, sums * constant, 0.0).sum(-1) if uniform else torch.zeros_like(reached).double()
    bias: Any = module.bias
    if bias is not None:
        emitted = emitted + bias.detach().double().cpu().reshape(emitted.shape)
    return torch.where(reached, torch.nan, emitted).reshape(-1)
