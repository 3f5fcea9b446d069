"""What changes of layout do to channels: where they are, and how often each one is repeated."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import fx

from regrow.deploy.shrink.flow import Flow, Value
from regrow.deploy.shrink.nodes import OpaqueError, Sizes, argument, first, known, shape, sizes_of


def flatten(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """Several dimensions become one."""
    source = known(flow, node)
    if source is None:
        return None
    sizes = shape(first(node))
    start = argument(node, 1, "start_dim", default=0) if module is None else module.start_dim
    end = argument(node, 2, "end_dim", default=-1) if module is None else module.end_dim
    return _merged(source, sizes, start % len(sizes), end % len(sizes))


def _merged(source: Value, sizes: tuple[int, ...], start: int, end: int) -> Value:
    """Dimensions start..end become one; the channels among them are repeated for every position."""
    if source.axis < start:
        return source
    if source.axis > end:
        return replace(source, axis=source.axis - (end - start))
    before = math.prod(sizes[start : source.axis])
    after = math.prod(sizes[source.axis + 1 : end + 1])
    slots, constant = (tensor.repeat_interleave(after).repeat(before) for tensor in (source.slots, source.constant))
    return Value(start, slots, constant)


def view(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """A view or reshape that keeps the channels, or flattens them with all that follows them."""
    source = known(flow, node)
    if source is None:
        return None
    axis, wanted = source.axis, sizes_of(node)
    before, after = shape(first(node)), shape(node)
    counts = [i for i, size in enumerate(wanted) if isinstance(flow.values.get(size), Sizes)]
    fits = len(wanted) == len(after) > axis and before[:axis] == after[:axis] and counts in ([], [axis])
    if not fits or not (isinstance(wanted[axis], int) or counts):
        raise OpaqueError("rearranges the channels")
    if after[axis] == before[axis]:
        return source
    if len(after) == axis + 1:
        return _merged(source, before, axis, len(before) - 1)
    raise OpaqueError("rearranges the channels")


def permute(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """The channels move to another dimension."""
    source = known(flow, node)
    if source is None:
        return None
    order = [dim % len(shape(node)) for dim in sizes_of(node)]
    return replace(source, axis=order.index(source.axis))


def transpose(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """Two dimensions change places."""
    source = known(flow, node)
    if source is None:
        return None
    a, b = (argument(node, i + 1, f"dim{i}") % len(shape(node)) for i in (0, 1))
    return replace(source, axis={a: b, b: a}.get(source.axis, source.axis))


def squeeze(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """A named dimension goes if it is 1."""
    source = known(flow, node)
    if source is None:
        return None
    dim, ndim = argument(node, 1, "dim"), len(shape(first(node)))
    if not isinstance(dim, int) or dim % ndim == source.axis:
        raise OpaqueError("may remove the channel dimension")
    gone = len(shape(node)) < ndim and dim % ndim < source.axis
    return replace(source, axis=source.axis - gone)


def unsqueeze(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """A dimension of 1 comes in."""
    source = known(flow, node)
    if source is None:
        return None
    dim = argument(node, 1, "dim") % len(shape(node))
    return replace(source, axis=source.axis + (dim <= source.axis))


def getitem(flow: Flow, node: fx.Node, module: Any) -> Any:
    """An element of a shape or of a list of tensors, or a part of a tensor that has all its channels."""
    container, index = node.args
    value: Any = flow.values[container]  # type: ignore[index]
    if value is None:
        return None
    if isinstance(value, Sizes):
        found: Any = range(value.ndim)[index]  # type: ignore[index]
        asks = value.source.axis in ([found] if isinstance(found, int) else found)
        return Sizes(value.source, value.ndim, whole=False) if asks else None
    if isinstance(value, tuple):
        return value[index]  # type: ignore[index]
    return replace(value, axis=_axis_after(index, value.axis, len(shape(container))))


def _axis_after(index: Any, axis: int, ndim: int) -> int:
    """Where dimension `axis` is after indexing with slices, integers, `None` and `...`."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not all(item is None or item is ... or isinstance(item, int | slice) for item in items):
        raise OpaqueError("indexes in a way that is not known")
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


def size(flow: Flow, node: fx.Node, module: Any) -> Sizes | None:
    """Asking for a shape is harmless unless the answer holds the number of channels."""
    source = known(flow, node)
    if source is None or (node.op == "call_function" and node.args[1] != "shape"):
        return None
    flow.queried.append(source)
    ndim = len(shape(first(node)))
    dim = argument(node, 1, "dim") if node.op == "call_method" else None
    if dim is None:
        return Sizes(source, ndim)
    return Sizes(source, ndim, whole=False) if dim % ndim == source.axis else None


def nothing(flow: Flow, node: fx.Node, module: Any) -> None:
    """Says something about a tensor other than its channels, such as its rank."""
