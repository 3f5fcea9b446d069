"""Computes the last convolution of a bottleneck and the projection on its shortcut as one convolution.

`conv(a) + project(b)`, both 1 x 1, is a convolution of the channels of `a` and `b` together. With sparse weights the
joined one costs no more than the two, and the sum is in registers instead of in memory: the wide images of a ResNet
take longer to write and read than to compute.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from regrow.engine.frontend.graph import Concat, Conv, Graph, Input, Node, Pool, Reshape, Value

WORTH_IT = 512 << 10
"""Bytes of the sum from which it would leave the second-level cache before it is read again."""


def join_shortcuts(graph: Graph) -> Graph:
    """An equivalent graph in which projections are part of the convolution that they are added to."""
    makers = {value: node for node in graph.nodes for value in node.outputs}
    placed = {part for node in graph.nodes if isinstance(node, Concat) for part in node.parts}
    nodes = list(graph.nodes)
    for node in graph.nodes:
        pair = _pair(node, makers, graph)
        if pair is None:
            continue
        main, projection = pair
        thinned = _thinned(projection)
        parts = (main.x, projection.x if thinned is None else thinned.out)
        if not all(_can_be_placed(part, makers.get(part), placed) for part in parts):
            continue
        placed.update(parts)
        if thinned is not None:
            # Not right before its use: between two convolutions it would keep them from running band by band.
            nodes.insert(max(_place(nodes, main.x), _place(nodes, projection.x) + 1), thinned)
        channels = sum(part.channels for part in parts)
        joined = Concat(node.name, Value("_".join(part.name for part in parts), (channels, *node.out.size)), parts)
        last, other = pair if main is node else (projection, main)
        position = nodes.index(last)
        nodes[position : position + 1] = [joined, _joined(last, main, projection, joined.out)]
        nodes.remove(other)
    return Graph(tuple(nodes), graph.output)


def _place(nodes: list[Node], value: Value) -> int:
    return next(number for number, node in enumerate(nodes) if value in node.outputs)


def _pair(node: Node, makers: dict[Value, Node], graph: Graph) -> tuple[Conv, Conv] | None:
    """A convolution and its projection, whichever of them adds the other's result to its own."""
    if not isinstance(node, Conv) or node.residual is None or graph.uses[node.residual] > 1:
        return None
    other = makers[node.residual]
    if not isinstance(other, Conv) or other.activation or other.residual or other.tail or other.x is node.x:
        return None
    plain = all(conv.kernel == (1, 1) and conv.padding == (0, 0) and conv.groups == 1 for conv in (node, other))
    main, projection = (other, node) if other.stride == (1, 1) else (node, other)
    return (main, projection) if plain and main.stride == (1, 1) and 4 * node.out.numel >= WORTH_IT else None


def _can_be_placed(value: Value, maker: Node | None, placed: set[Value]) -> bool:
    """Whether it can be written where the joined channels will lie, so that joining them is no copy."""
    return value.pixels > 1 and value not in placed and not isinstance(maker, Input | Reshape | Concat)


def _thinned(projection: Conv) -> Pool | None:
    """What takes the pixels that a strided projection reads: a maximum over windows of one."""
    if projection.stride == (1, 1):
        return None
    x = projection.x
    value = Value(f"{x.name}_thinned", (x.channels, *projection.out.size))
    return Pool(projection.name, value, x, "max", (1, 1), projection.stride)


def _joined(last: Conv, main: Conv, projection: Conv, x: Value) -> Conv:
    """The one of them that adds the other's result, on the channels of both."""
    return replace(
        last,
        name=f"{main.name} + {projection.name}",
        x=x,
        weight=torch.cat([main.weight, projection.weight], 1),
        bias=main.bias + projection.bias,
        stride=(1, 1),
        residual=None,
    )
