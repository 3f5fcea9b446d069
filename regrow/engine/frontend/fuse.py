"""Simplifies a graph without changing what it computes: most of the speedup comes from fewer passes over memory.

`fuse` visits the nodes in running order. A node disappears into the one that computed its operand where possible: batch
norms go into weights, activations and residual sums into the last step of a convolution, and the batch norm and ReLU of
a pre-activation network become a second output of the convolution before them.

`join_shortcuts` computes the last convolution of a bottleneck and the projection on its shortcut as one convolution:
`conv(a) + project(b)`, both 1 x 1, is one convolution of the channels of `a` and `b` together. With sparse weights it
costs no more than the two, and the sum stays in registers: the wide images of a ResNet take longer to write and read
than to compute.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from regrow.engine.frontend.graph import Graph, Node, Value, count_uses
from regrow.engine.ops.conv import Conv
from regrow.engine.ops.linear import Linear
from regrow.engine.ops.pointwise import Affine, Binary, Pointwise
from regrow.engine.ops.pool import Mean, Pool
from regrow.engine.ops.reshape import Concat, Reshape

LARGE_SUM = 512 << 10
"""Bytes of a sum above which it does not stay in the second-level cache until it is read."""


def fuse(graph: Graph) -> Graph:
    """Return an equivalent graph with as few nodes as possible."""
    graph = _split_affines_of_concats(graph)
    sweep = _Sweep(graph)
    for node in graph.nodes:
        sweep.take(_simplified(node))
    return _without_dead_code(sweep.nodes(), graph.output)


class _Sweep:
    """The nodes so far, by the value they compute; a dict keeps their order."""

    def __init__(self, graph: Graph) -> None:
        self.uses = graph.uses
        self.made: dict[Value, Node] = {}

    def nodes(self) -> tuple[Node, ...]:
        """Return them in running order, each once (second outputs have their own entry)."""
        return tuple(node for value, node in self.made.items() if value is node.out)

    def take(self, node: Node) -> None:
        if isinstance(node, Affine) and (self.fold(node) or self.follow(node) or self.add_second_output(node)):
            return
        if isinstance(node, Binary) and node.op == "add" and self.sum(node):
            return
        self.made[node.out] = node

    def only_use(self, value: Value) -> bool:
        return self.uses[value] == 1

    def absorb(self, old: Value, node: Node) -> None:
        """Replace the node that computes `old` by `node`, at the end: it may read values computed after `old`."""
        del self.made[old]
        self.made[node.out] = node

    def fold(self, node: Affine) -> bool:
        """Fold scale and shift into the weights before them, and the activation into the last step."""
        maker = self.made.get(node.x)
        if not isinstance(maker, Conv | Linear) or not self.only_use(node.x) or maker.activation:
            return False
        if isinstance(maker, Conv) and (maker.residual or maker.second_output):
            return False
        weight, bias = maker.weight, maker.bias
        if node.scale is not None:
            weight = weight * node.scale.reshape(-1, *(1 for _ in weight.shape[1:]))
            bias = bias * node.scale
        if node.shift is not None:
            bias = bias + node.shift
        self.absorb(node.x, replace(maker, out=node.out, weight=weight, bias=bias, activation=node.activation))
        return True

    def follow(self, node: Affine) -> bool:
        """Make an activation part of the step that computes its operand."""
        maker = self.made.get(node.x)
        if node.scale is not None or node.shift is not None or not self.only_use(node.x):
            return False
        if isinstance(maker, Conv) and maker.second_output is not None and node.x is maker.second_output.out:
            if maker.second_output.activation:
                return False
            self.set_second_output(maker, replace(maker.second_output, out=node.out, activation=node.activation))
            return True
        if not isinstance(maker, Conv | Pointwise) or maker.activation:
            return False
        if isinstance(maker, Conv) and maker.second_output:
            return False
        self.absorb(node.x, replace(maker, out=node.out, activation=node.activation))
        return True

    def add_second_output(self, node: Affine) -> bool:
        maker = self.made.get(node.x)
        if not isinstance(maker, Conv) or maker.second_output is not None or node.x is not maker.out:
            return False
        self.set_second_output(maker, node)
        return True

    def set_second_output(self, maker: Conv, second: Affine) -> None:
        if maker.second_output is not None:
            del self.made[maker.second_output.out]
        fused = replace(maker, second_output=second)
        # The convolution keeps its position: readers of `out` may come before those of the second output.
        self.made[maker.out] = fused
        self.made[second.out] = fused

    def sum(self, node: Binary) -> bool:
        """Compute `conv(x) + r` while the result of the convolution is in registers."""
        order = {value: position for position, value in enumerate(self.made)}
        for mine, other in sorted(
            ((node.a, node.b), (node.b, node.a)), key=lambda pair: order.get(pair[0], -1), reverse=True
        ):
            maker = self.made.get(mine)
            if not isinstance(maker, Conv) or not self.only_use(mine) or other.shape != mine.shape:
                continue
            if maker.activation or maker.residual or maker.second_output:
                continue
            self.absorb(mine, replace(maker, out=node.out, residual=other, activation=node.activation))
            return True
        return False


def _simplified(node: Node) -> Node:
    """Replace a node on images of one pixel: a convolution by a matrix product, a mean by a reshape."""
    if isinstance(node, Mean) and node.x.pixels == 1:
        return Reshape(node.name, node.out, node.x)
    if not isinstance(node, Conv) or node.x.pixels != 1 or node.out.pixels != 1 or node.groups != 1:
        return node
    # All taps of the kernel but one see padding only.
    (row, no_row), (col, no_col) = (divmod(p, d) for p, d in zip(node.padding, node.dilation, strict=True))
    inside = row < node.kernel[0] and col < node.kernel[1]
    if no_row or no_col or not inside:
        return node
    return Linear(node.name, node.out, node.x, node.weight[:, :, row, col], node.bias)


def _split_affines_of_concats(graph: Graph) -> Graph:
    """Turn `affine(cat(a, b))` into `cat(affine(a), affine(b))`, which needs no copy of the joined channels.

    In a DenseNet every layer normalizes all channels so far: this saves one copy of them per layer.
    """
    concats: dict[Value, Concat] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node, Concat):
            flat = (concats[part].parts if part in concats else (part,) for part in node.parts)
            node = concats[node.out] = replace(node, parts=tuple(part for parts in flat for part in parts))
        joined = concats.get(node.x) if isinstance(node, Affine) else None
        if not isinstance(node, Affine) or joined is None or len(joined.out.shape) != 3:
            nodes.append(node)
            continue
        parts, first = [], 0
        for part in joined.parts:
            own = slice(first, first := first + part.channels)
            value = Value(f"{node.out.name}_{own.start}", part.shape)
            scale = None if node.scale is None else node.scale[own]
            shift = None if node.shift is None else node.shift[own]
            nodes.append(Affine(node.name, value, part, scale, shift, activation=node.activation))
            parts.append(value)
        concats[node.out] = concat = Concat(node.name, node.out, tuple(parts))
        nodes.append(concat)
    return Graph(_live(nodes, graph.output), graph.output)


def _live(nodes: list[Node] | tuple[Node, ...], output: Value) -> tuple[Node, ...]:
    needed, kept = {output}, []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


def _without_dead_code(nodes: tuple[Node, ...], output: Value) -> Graph:
    nodes = _live(nodes, output)
    uses = count_uses(nodes, output)
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Conv) and node.second_output is not None:
            second = node.second_output if uses[node.second_output.out] else None
            node = replace(node, second_output=second, keeps_out=uses[node.out] > 0)
        kept.append(node)
    return Graph(tuple(kept), output)


def join_shortcuts(graph: Graph) -> Graph:
    """Return an equivalent graph in which projections are part of the convolution that they are added to."""
    makers = {value: node for node in graph.nodes for value in node.outputs}
    placed = {part for node in graph.nodes if isinstance(node, Concat) for part in node.parts}
    nodes = list(graph.nodes)
    for node in graph.nodes:
        pair = _shortcut_pair(node, makers, graph)
        if pair is None:
            continue
        main, projection = pair
        strided = _strided(projection)
        parts = (main.x, projection.x if strided is None else strided.out)
        if not all(_can_be_placed(part, makers.get(part), placed) for part in parts):
            continue
        placed.update(parts)
        if strided is not None:
            # Not right before its use: between two convolutions, it would prevent bands.
            nodes.insert(max(_position(nodes, main.x), _position(nodes, projection.x) + 1), strided)
        channels = sum(part.channels for part in parts)
        joined = Concat(node.name, Value("_".join(part.name for part in parts), (channels, *node.out.size)), parts)
        last, other = pair if main is node else (projection, main)
        position = nodes.index(last)
        nodes[position : position + 1] = [joined, _joined(last, main, projection, joined.out)]
        nodes.remove(other)
    return Graph(tuple(nodes), graph.output)


def _position(nodes: list[Node], value: Value) -> int:
    return next(number for number, node in enumerate(nodes) if value in node.outputs)


def _shortcut_pair(node: Node, makers: dict[Value, Node], graph: Graph) -> tuple[Conv, Conv] | None:
    """Return a convolution and its projection; either may be the one with the residual."""
    if not isinstance(node, Conv) or node.residual is None or graph.uses[node.residual] > 1:
        return None
    other = makers[node.residual]
    if not isinstance(other, Conv) or other.activation or other.residual or other.second_output or other.x is node.x:
        return None
    plain = all(conv.kernel == (1, 1) and conv.padding == (0, 0) and conv.groups == 1 for conv in (node, other))
    main, projection = (other, node) if other.stride == (1, 1) else (node, other)
    return (main, projection) if plain and main.stride == (1, 1) and 4 * node.out.numel >= LARGE_SUM else None


def _can_be_placed(value: Value, maker: Node | None, placed: set[Value]) -> bool:
    """Whether it can be written directly into the buffer of the joined channels."""
    return value.pixels > 1 and value not in placed and (maker is None or maker.placeable)


def _strided(projection: Conv) -> Pool | None:
    """Return a node that selects the pixels a strided projection reads: a maximum over windows of one pixel."""
    if projection.stride == (1, 1):
        return None
    x = projection.x
    value = Value(f"{x.name}_strided", (x.channels, *projection.out.size))
    return Pool(projection.name, value, x, "max", (1, 1), projection.stride)


def _joined(last: Conv, main: Conv, projection: Conv, x: Value) -> Conv:
    """Return the convolution of the channels of both."""
    return replace(
        last,
        name=f"{main.name} + {projection.name}",
        x=x,
        weight=torch.cat([main.weight, projection.weight], 1),
        bias=main.bias + projection.bias,
        stride=(1, 1),
        residual=None,
    )
