"""Rules of operations that change shapes: the dimension of the channels, and how often each one is repeated."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from regrow.shrinking.channels import (
    Channels,
    Flow,
    OpaqueError,
    ShapeQuery,
    argument,
    first,
    input_channels,
    rule,
    shape,
    sizes_of,
)


@rule(nn.Flatten, torch.flatten, "flatten")
def flatten(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """Flatten joins several dimensions to one."""
    source = input_channels(flow, node)
    if source is None:
        return None
    sizes = shape(first(node))
    start = argument(node, 1, "start_dim", default=0) if module is None else module.start_dim
    end = argument(node, 2, "end_dim", default=-1) if module is None else module.end_dim
    return _merged(source, sizes, start % len(sizes), end % len(sizes))


def _merged(source: Channels, sizes: tuple[int, ...], start: int, end: int) -> Channels:
    """Join dimensions start..end; channels among them are repeated for every position."""
    if source.axis < start:
        return source
    if source.axis > end:
        return replace(source, axis=source.axis - (end - start))
    before = math.prod(sizes[start : source.axis])
    after = math.prod(sizes[source.axis + 1 : end + 1])
    slots, constant = (tensor.repeat_interleave(after).repeat(before) for tensor in (source.slots, source.constant))
    return Channels(start, slots, constant)


@rule(torch.reshape, "view", "reshape")
def view(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """A view or reshape may keep the channels, or flatten them with all dimensions after them."""
    source = input_channels(flow, node)
    if source is None:
        return None
    axis, wanted = source.axis, sizes_of(node)
    before, after = shape(first(node)), shape(node)
    counts = [i for i, size in enumerate(wanted) if isinstance(flow.values.get(size), ShapeQuery)]
    fits = len(wanted) == len(after) > axis and before[:axis] == after[:axis] and counts in ([], [axis])
    if not fits or not (isinstance(wanted[axis], int) or counts):
        raise OpaqueError("rearranges the channels")
    if after[axis] == before[axis]:
        return source
    if len(after) == axis + 1:
        return _merged(source, before, axis, len(before) - 1)
    raise OpaqueError("rearranges the channels")


@rule(torch.permute, "permute")
def permute(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """Permute moves the channels to another dimension."""
    source = input_channels(flow, node)
    if source is None:
        return None
    order = [dim % len(shape(node)) for dim in sizes_of(node)]
    return replace(source, axis=order.index(source.axis))


@rule(torch.transpose, "transpose")
def transpose(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """Transpose swaps two dimensions."""
    source = input_channels(flow, node)
    if source is None:
        return None
    a, b = (argument(node, i + 1, f"dim{i}") % len(shape(node)) for i in (0, 1))
    return replace(source, axis={a: b, b: a}.get(source.axis, source.axis))


@rule(torch.squeeze, "squeeze")
def squeeze(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """Squeeze removes a dimension of size 1."""
    source = input_channels(flow, node)
    if source is None:
        return None
    dim, ndim = argument(node, 1, "dim"), len(shape(first(node)))
    if not isinstance(dim, int) or dim % ndim == source.axis:
        raise OpaqueError("may remove the channel dimension")
    gone = len(shape(node)) < ndim and dim % ndim < source.axis
    return replace(source, axis=source.axis - gone)


@rule(torch.unsqueeze, "unsqueeze")
def unsqueeze(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """Unsqueeze inserts a dimension of size 1."""
    source = input_channels(flow, node)
    if source is None:
        return None
    dim = argument(node, 1, "dim") % len(shape(node))
    return replace(source, axis=source.axis + (dim <= source.axis))


@rule(operator.getitem)
def getitem(flow: Flow, node: fx.Node, module: Any) -> Any:
    """Indexing returns an element of a shape or of a list of tensors, or a part of a tensor with all its channels."""
    container, index = node.args
    value: Any = flow.values[container]  # type: ignore[index]
    if value is None:
        return None
    if isinstance(value, ShapeQuery):
        found: Any = range(value.ndim)[index]  # type: ignore[index]
        asks = value.source.axis in ([found] if isinstance(found, int) else found)
        return ShapeQuery(value.source, value.ndim, whole=False) if asks else None
    if isinstance(value, tuple):
        return value[index]  # type: ignore[index]
    return replace(value, axis=_axis_after(index, value.axis, len(shape(container))))


def _axis_after(index: Any, axis: int, ndim: int) -> int:
    """Return the position of dimension `axis` after indexing with slices, integers, `None` and `...`."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not all(item is None or item is ... or isinstance(item, int | slice) for item in items):
        raise OpaqueError("indexes in a way that is not followed")
    if any(item is ... for item in items):
        taken = sum(isinstance(item, int | slice) for item in items)
        place = next(i for i, item in enumerate(items) if item is ...)
        items[place : place + 1] = [slice(None)] * (ndim - taken)
    before = after = 0
    for item in items:
        if item is None:
            after += 1
            continue
        if before == axis:
            if item != slice(None):
                raise OpaqueError("selects channels")
            return after
        before, after = before + 1, after + isinstance(item, slice)
    return after + axis - before


@rule(getattr, "size")
def size(flow: Flow, node: fx.Node, module: Any) -> ShapeQuery | None:
    """A shape may be read, but only a view may use the number of channels in it."""
    source = input_channels(flow, node)
    if source is None or (node.op == "call_function" and node.args[1] != "shape"):
        return None
    flow.queried.append(source)
    ndim = len(shape(first(node)))
    dim = argument(node, 1, "dim") if node.op == "call_method" else None
    if dim is None:
        return ShapeQuery(source, ndim)
    return ShapeQuery(source, ndim, whole=False) if dim % ndim == source.axis else None


@rule("dim")
def nothing(flow: Flow, node: fx.Node, module: Any) -> None:
    """The number of dimensions does not depend on the channels."""
