"""Cuts an image into shares of its rows, one for each thread.

A share is an image itself: with the few rows beyond it that windows reach, every layer makes of it the share of the
layer's output. Threads then read what they wrote themselves, in their own cores' caches, and exchange a row or two
after each layer. Otherwise a second thread would bring little to a small network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from regrow.engine.frontend.graph import Affine, Binary, Conv, Graph, Input, Linear, Mean, Node, Pool, Reshape, Value
from regrow.engine.plan.borders import boxes_of
from regrow.engine.plan.layout import Planes
from regrow.engine.plan.schedule import schedule
from regrow.engine.plan.steps import GatherStep, Schedule

WASTED = 1.5
"""Pixels that are computed, per pixel of the image, from which threads are better off dividing it otherwise."""


def share_schedule(graph: Graph, lanes: int, shares: int) -> Schedule | None:
    """What one thread does for its share, or None if the network's images cannot all be divided evenly.

    They can if every layer has as many rows as its input, divided by the stride, and if their mean ends them: what
    follows is for one thread. Images of which rows are exchanged must be wide enough for one row of regions to fill the
    vectors.
    """
    if not _divisible(graph, shares):
        return None
    known: dict[Value, Value] = {}
    share = Graph(tuple(_cut(node, shares, known) for node in graph.nodes), graph.output)
    found = schedule(share, lanes, shares=shares)
    boxes = boxes_of(found.steps, lanes)
    moves = any(isinstance(step, GatherStep) and step.reads[0].planes is not None for step in found.steps)
    if moves or not all(_suits(image.planes) for image in boxes if image.planes is not None):
        return None  # moves would be of rows that others have
    return replace(found, boxes=boxes)


def _suits(planes: Planes) -> bool:
    """Whether no window reaches beyond the neighbours' rows, and lanes are not wasted."""
    near = max(planes.halo.top, planes.halo.bottom) <= planes.grid.rows
    return near and planes.grid.across * planes.grid.cols <= WASTED * planes.width


def _divisible(graph: Graph, shares: int) -> bool:
    images = [value for node in graph.nodes for value in node.outputs if value.pixels > 1]
    means = [number for number, node in enumerate(graph.nodes) if isinstance(node, Mean)]
    if len(means) != 1 or any(image.size[0] % shares or image.pixels == shares for image in images):
        return False  # a share of one pixel is no image
    before, after = graph.nodes[: means[0] + 1], graph.nodes[means[0] + 1 :]
    return all(_divides(node) for node in before) and _only_features(after)


def _divides(node: Node) -> bool:
    """Whether shares of a node's output follow from shares of its input."""
    if isinstance(node, Pool) and node.op == "avg" and (node.kernel[0] != node.stride[0] or node.padding[0]):
        return False  # windows at the image's edge may count fewer pixels
    if isinstance(node, Conv | Pool):
        return node.out.pixels > 1 and node.x.size[0] == node.stride[0] * node.out.size[0]
    if isinstance(node, Binary):
        return node.a.shape == node.b.shape
    return isinstance(node, Input | Affine) or (isinstance(node, Mean) and node.x.pixels > 1)


def _only_features(nodes: Sequence[Node]) -> bool:
    return all(
        isinstance(node, Linear | Reshape | Affine | Binary) and all(v.pixels == 1 for v in (*node.inputs, node.out))
        for node in nodes
    )


def _cut(node: Any, shares: int, known: dict[Value, Value]) -> Any:
    """The node on a share of every image that it reads or writes."""
    changed: dict[str, Any] = {}
    for field in fields(node):
        content = getattr(node, field.name)
        if isinstance(content, Value) and content.pixels > 1:
            channels, height, width = content.shape
            changed[field.name] = known.setdefault(content, Value(content.name, (channels, height // shares, width)))
        elif isinstance(content, Node):
            changed[field.name] = _cut(content, shares, known)
    return replace(node, **changed)
