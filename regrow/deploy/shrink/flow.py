"""What is known about every channel of every tensor in a captured model: which are tied, pinned or constant.

A *slot* stands for one channel. Operations that treat channels one by one hand slots through; operations
that combine two tensors channel by channel tie their slots, so that both are removed or neither is. A
channel whose value does not depend on the input nor on the position is *constant*: it can be removed and
what it sends on be folded into the layers that read it. Everything here is a fact about the model; `plan`
decides, `rewrite` acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from regrow.deploy.shrink.capture import TRANSPOSED


@dataclass(frozen=True)
class Reason:
    """Why a channel stays; `unsupported` if a more capable `shrink` could have removed it."""

    text: str
    unsupported: bool = False


@dataclass(frozen=True)
class Value:
    """One tensor: the channels along `axis`, and the constant each of them holds (NaN where it varies)."""

    axis: int
    slots: Tensor
    constant: Tensor

    @property
    def varies(self) -> Tensor:
        """Which channels depend on the input or the position."""
        return self.constant.isnan()

    @staticmethod
    def joined(parts: list[Value]) -> Value:
        """Several values with the same axis, one after the other."""
        slots = torch.cat([part.slots for part in parts])
        return Value(parts[0].axis, slots, torch.cat([part.constant for part in parts]))

    def varying(self) -> Value:
        """The same channels, none of them constant."""
        return replace(self, constant=torch.full_like(self.constant, torch.nan))


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution or linear layer: its readers' side (`source`), its producers' side (`result`), its zeros.

    `touches[g, o, i]` says whether output o of group g has a non-zero weight for input i. `uniform` says
    that constant inputs give constant outputs, which zero padding breaks at the border.
    """

    node: fx.Node
    module: nn.Module
    source: Value
    result: Value
    touches: Tensor
    uniform: bool

    @property
    def groups(self) -> int:
        """Number of independent groups of channels."""
        return int(self.touches.shape[0])


@dataclass
class Flow:
    """Collects the facts while the graph is walked in order."""

    values: dict[fx.Node, Any] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    channelwise: list[tuple[fx.Node, Value]] = field(default_factory=list)
    # Operand number -> the constant tensor that replaces it, and the value whose channels it must follow.
    constants: dict[fx.Node, tuple[int, Value, Value | None]] = field(default_factory=dict)
    queried: list[Value] = field(default_factory=list)
    pins: dict[int, Reason] = field(default_factory=dict)
    opaque: dict[fx.Node, str] = field(default_factory=dict)
    _parent: list[int] = field(default_factory=list)

    def fresh(self, axis: int, constant: Tensor) -> Value:
        """New, independent channels with these constants."""
        first = len(self._parent)
        count = len(constant)
        self._parent.extend(range(first, first + count))
        return Value(axis, torch.arange(first, first + count), constant)

    def pinned(self, axis: int, channels: int, reason: Reason) -> Value:
        """Channels of a tensor that nothing is known about: all vary, all stay."""
        value = self.fresh(axis, torch.full((channels,), torch.nan, dtype=torch.float64))
        self.pin(value, reason)
        return value

    def pin(self, value: Value, reason: Reason) -> None:
        """Every channel of `value` stays."""
        for slot in value.slots.tolist():
            self.pins.setdefault(slot, reason)

    def tie(self, a: Value, b: Value) -> None:
        """Channel i of `a` stays if and only if channel i of `b` does."""
        for i, j in zip(a.slots.tolist(), b.slots.tolist(), strict=True):
            self._parent[self._root(i)] = self._root(j)

    def classes(self) -> Tensor:
        """For every slot, the number of the class of slots it is tied to."""
        return torch.tensor([self._root(slot) for slot in range(len(self._parent))], dtype=torch.long)

    def _root(self, slot: int) -> int:
        parent = self._parent
        while parent[slot] != slot:
            parent[slot] = parent[parent[slot]]
            slot = parent[slot]
        return slot


def grouped(module: nn.Module, tensor: Tensor | None = None) -> Tensor:
    """A layer's weight as (groups, outputs per group, inputs per group, kernel elements)."""
    weight: Any = module.weight if tensor is None else tensor
    groups = int(getattr(module, "groups", 1))
    folded: Tensor = weight.detach().reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return folded.transpose(1, 2) if isinstance(module, TRANSPOSED) else folded


def ungrouped(module: nn.Module, weight: Tensor) -> Tensor:
    """The inverse of `grouped`: (groups, outputs, inputs, kernel elements) in the layer's own layout."""
    if isinstance(module, TRANSPOSED):
        weight = weight.transpose(1, 2)
    kernel = tuple(getattr(module, "kernel_size", ()))
    return weight.reshape(-1, weight.shape[2], *kernel)


def layer_constant(module: nn.Module, touches: Tensor, source: Value, *, uniform: bool) -> Tensor:
    """The constants a layer emits: an output is constant if nothing that varies reaches it."""
    groups, _, inputs = touches.shape
    constant = source.constant.reshape(groups, 1, inputs)
    varies = constant.isnan() if uniform else constant.isnan() | (constant != 0)
    reached = (touches & varies).any(-1)
    sums = grouped(module).double().sum(-1).cpu()
    # nan * 0 must not spoil the sum: a weight of zero reads nothing.
    emitted = torch.where(touches, sums * constant, 0.0).sum(-1) if uniform else torch.zeros_like(reached).double()
    bias: Any = module.bias
    if bias is not None:
        emitted = emitted + bias.detach().double().cpu().reshape(emitted.shape)
    return torch.where(reached, torch.nan, emitted).reshape(-1)
