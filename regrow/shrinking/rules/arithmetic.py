"""Rules of operations on several tensors: arithmetic ties channels, concatenation joins them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from regrow.shrinking.channels import (
    OUTSIDE,
    Channels,
    Flow,
    OpaqueError,
    Reason,
    argument,
    first,
    input_channels,
    rule,
    shape,
)


@dataclass(frozen=True)
class Arithmetic:
    """An operation on two tensors; `neutral` is the operand that changes nothing, first as well if it `commutes`."""

    function: Callable[[Any, Any], Any]
    neutral: float
    commutes: bool


ARITHMETIC: dict[Any, Arithmetic] = {
    **dict.fromkeys((operator.add, torch.add, "add"), Arithmetic(operator.add, 0.0, True)),
    **dict.fromkeys((operator.sub, torch.sub, "sub"), Arithmetic(operator.sub, 0.0, False)),
    **dict.fromkeys((operator.mul, torch.mul, "mul"), Arithmetic(operator.mul, 1.0, True)),
    **dict.fromkeys((operator.truediv, torch.div, "div"), Arithmetic(operator.truediv, 1.0, False)),
}


@rule(*ARITHMETIC)
def arithmetic(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """A sum, difference, product or quotient ties the channels of its operands."""
    if len(node.args) != 2 or node.kwargs:
        raise OpaqueError("with options")
    values: list[Any] = [flow.values.get(arg) if isinstance(arg, fx.Node) else None for arg in node.args]
    if any(isinstance(value, tuple) for value in values):
        raise OpaqueError("reads several tensors at once")
    followed = [i for i in (0, 1) if values[i] is not None]
    if not followed:
        return None
    return _of_two(flow, node, *values) if len(followed) == 2 else _of_one(flow, node, values, followed[0])


def _of_two(flow: Flow, node: fx.Node, a: Channels, b: Channels) -> Channels:
    if len({len(shape(arg)) for arg in node.args}) != 1 or a.axis != b.axis:
        raise OpaqueError("combines different dimensions")
    constant = _result(node, a.constant, b.constant)
    for i, value, other in ((1, b, a), (0, a, b)):
        if _is_constant(node, i, value):
            flow.constants[node] = (i, value, other)
            return replace(other, constant=constant)
    if len(a.slots) != len(b.slots):
        single, other = (a, b) if len(a.slots) == 1 else (b, a)
        flow.pin(single, Reason("spread over all channels of another tensor"))
        return replace(other, constant=constant)
    flow.tie(a, b)
    return replace(a, constant=constant)


def _of_one(flow: Flow, node: fx.Node, values: list[Any], i: int) -> Channels | None:
    """Combine a followed tensor with a number, a tensor without channels, or one that is not followed."""
    value: Channels = values[i]
    other = node.args[1 - i]
    if isinstance(other, int | float):
        operands = [value.constant, torch.full_like(value.constant, other)]
        return replace(value, constant=_result(node, operands[i], operands[1 - i]))
    theirs, ours = shape(other), shape(node.args[i])
    place = value.axis - len(ours) + len(theirs)
    if len(theirs) <= len(ours) and (place < 0 or theirs[place] == 1):
        return value.varying()
    if _is_constant(node, i, value):
        flow.constants[node] = (i, value, None)
        return None
    if theirs != ours:
        raise OpaqueError("with a tensor of another shape")
    flow.pin(value, Reason("combined with a tensor that is not followed"))
    return value.varying()


def _is_constant(node: fx.Node, i: int, value: Channels) -> bool:
    """Return whether operand i is constant everywhere, and the other one has the shape of the result."""
    return not bool(value.varies.any()) and shape(node.args[1 - i]) == shape(node)


def _result(node: fx.Node, a: Tensor, b: Tensor) -> Tensor:
    function = ARITHMETIC[node.target].function
    constant: Tensor = function(a, b)
    if function is operator.mul:  # zero times anything finite
        constant = torch.where((a == 0) | (b == 0), 0.0, constant)
    return torch.where(constant.isfinite(), constant, torch.nan)


@rule(torch.cat, torch.concat)
def cat(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """Concatenation puts the channels of its tensors one after the other."""
    parts: Any = argument(node, 0, "tensors")
    if isinstance(parts, fx.Node):
        raise OpaqueError("of a computed list")
    values = [flow.values[part] for part in parts]
    if all(value is None for value in values):
        return None
    axis = argument(node, 1, "dim", "axis", default=0) % len(shape(parts[0]))
    if not all(value is None or (isinstance(value, Channels) and value.axis == axis) for value in values):
        raise OpaqueError("not along the channels")
    return Channels.joined(
        [
            flow.pinned(axis, shape(part)[axis], OUTSIDE) if value is None else value
            for value, part in zip(values, parts, strict=True)
        ]
    )


@rule(torch.chunk, torch.split, "chunk", "split")
def split(flow: Flow, node: fx.Node, module: Any) -> tuple[Channels, ...] | None:
    """A split returns pieces of the channels, each followed separately."""
    source = input_channels(flow, node)
    if source is None:
        return None
    if argument(node, 2, "dim", default=0) % len(shape(first(node))) != source.axis:
        raise OpaqueError("not along the channels")
    amount: Any = argument(node, 1, "chunks", "split_size_or_sections", "split_size")
    if not isinstance(amount, int | list | tuple) or any(
        isinstance(size, fx.Node) for size in node.all_input_nodes[1:]
    ):
        raise OpaqueError("with computed sizes")
    cut = torch.chunk if node.target in ("chunk", torch.chunk) else torch.split
    pieces = cut(torch.arange(len(source.slots)), amount)  # type: ignore[arg-type]
    return tuple(Channels(source.axis, source.slots[piece], source.constant[piece]) for piece in pieces)
