"""Reads a captured graph's nodes: shapes, arguments, and what is known about the tensors they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from regrow.deploy.shrink.flow import Flow, Reason, Value

OUTSIDE = Reason("comes from outside the layers that are followed")

# What a node does to channels, given what is known so far, the node, and its module if it calls one.
Rule = Callable[[Flow, fx.Node, Any], Any]


class OpaqueError(Exception):
    """An operation whose effect on channels is not known; the message says what about it."""


@dataclass(frozen=True)
class Sizes:
    """A shape (`whole`), or the number of channels from one: only a view may use it, as that same number."""

    source: Value
    ndim: int
    whole: bool = True


def shape(node: Any) -> tuple[int, ...]:
    """The shape of a node's tensor for the example input; empty for what is not one tensor."""
    meta = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return tuple(getattr(meta, "shape", ()))


def argument(node: fx.Node, position: int, *names: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by one of its names."""
    if len(node.args) > position:
        return node.args[position]
    return next((node.kwargs[name] for name in names if name in node.kwargs), default)


def sizes_of(node: fx.Node) -> tuple[Any, ...]:
    """The sizes (or dimensions) that a view, reshape or permute asks for, however they were passed."""
    given: Any = node.args[1:] or tuple(node.kwargs.values())
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], tuple | list) else tuple(given)


def first(node: fx.Node) -> Any:
    """The tensor a node works on."""
    return argument(node, 0, "input", "tensor", "self")


def known(flow: Flow, node: fx.Node) -> Value | None:
    """What is known about the tensor a node works on; None if it is not followed."""
    value = flow.values.get(first(node))
    if isinstance(value, tuple):
        raise OpaqueError("reads several tensors at once")
    return value


def channels(flow: Flow, node: fx.Node, axis: int) -> Value:
    """The tensor a node works on, which must have its channels along `axis`."""
    sizes = shape(first(node))
    if not -len(sizes) <= axis < len(sizes):
        raise OpaqueError(f"expects a batch of tensors, got shape {sizes}")
    axis %= len(sizes)
    value = known(flow, node)
    if value is None:
        return flow.pinned(axis, sizes[axis], OUTSIDE)
    if value.axis != axis:
        raise OpaqueError(f"works on dimension {axis} while the channels are dimension {value.axis}")
    return value
