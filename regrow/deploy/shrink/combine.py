"""What operations on several tensors do to channels: arithmetic ties them, concatenation joins them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from regrow.deploy.shrink.flow import Flow, Reason, Value
from regrow.deploy.shrink.nodes import OUTSIDE, OpaqueError, argument, first, known, shape

ARITHMETIC: dict[Any, Callable[[Any, Any], Any]] = {
    **dict.fromkeys((operator.add, torch.add, "add"), operator.add),
    **dict.fromkeys((operator.sub, torch.sub, "sub"), operator.sub),
    **dict.fromkeys((operator.mul, torch.mul, "mul"), operator.mul),
    **dict.fromkeys((operator.truediv, torch.div, "div"), operator.truediv),
}


def arithmetic(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """A sum, difference, product or quotient of two tensors, or of a tensor and a number."""
    if len(node.args) != 2 or node.kwargs:
        raise OpaqueError("with options")
    values: list[Any] = [flow.values.get(arg) if isinstance(arg, fx.Node) else None for arg in node.args]
    if any(isinstance(value, tuple) for value in values):
        raise OpaqueError("reads several tensors at once")
    followed = [i for i in (0, 1) if values[i] is not None]
    if not followed:
        return None
    return _of_two(flow, node, *values) if len(followed) == 2 else _of_one(flow, node, values, followed[0])


def _of_two(flow: Flow, node: fx.Node, a: Value, b: Value) -> Value:
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


def _of_one(flow: Flow, node: fx.Node, values: list[Any], i: int) -> Value | None:
    """One followed tensor and something else: a number, a tensor without channels, or an unknown one."""
    value: Value = values[i]
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


def _is_constant(node: fx.Node, i: int, value: Value) -> bool:
    """Whether operand i is constant throughout, and the other one already has the result's shape."""
    return not bool(value.varies.any()) and shape(node.args[1 - i]) == shape(node)


def _result(node: fx.Node, a: Tensor, b: Tensor) -> Tensor:
    function = ARITHMETIC[node.target]
    constant: Tensor = function(a, b)
    if function is operator.mul:  # zero times anything finite
        constant = torch.where((a == 0) | (b == 0), 0.0, constant)
    return torch.where(constant.isfinite(), constant, torch.nan)


def cat(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """The channels of several tensors, one after the other."""
    parts: Any = argument(node, 0, "tensors")
    if isinstance(parts, fx.Node):
        raise OpaqueError("of a computed list")
    values = [flow.values[part] for part in parts]
    if all(value is None for value in values):
        return None
    axis = argument(node, 1, "dim", "axis", default=0) % len(shape(parts[0]))
    if not all(value is None or (isinstance(value, Value) and value.axis == axis) for value in values):
        raise OpaqueError("not along the channels")
    return Value.joined(
        [
            flow.pinned(axis, shape(part)[axis], OUTSIDE) if value is None else value
            for value, part in zip(values, parts, strict=True)
        ]
    )


def split(flow: Flow, node: fx.Node, module: Any) -> tuple[Value, ...] | None:
    """Pieces of the channels, each followed on its own."""
    source = known(flow, node)
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
    return tuple(Value(source.axis, source.slots[piece], source.constant[piece]) for piece in pieces)
