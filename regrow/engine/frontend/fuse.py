"""Makes a graph smaller without changing what it computes: fewer passes over memory are most of the speed.

One sweep in running order. A node that can be absorbed by the node that made its operand disappears into it:
batch norms go into weights, activations and residual sums into the convolution's last step, and the batch norm
and ReLU of a pre-activation network become a second output of the convolution before them.
"""

from __future__ import annotations

from dataclasses import replace

from regrow.engine.frontend.graph import (
    Affine,
    Binary,
    Concat,
    Conv,
    Graph,
    Linear,
    Mean,
    Node,
    Reshape,
    Value,
    count_uses,
)


def fuse(graph: Graph) -> Graph:
    """An equivalent graph with everything absorbed that can be."""
    graph = _split_affines_of_concats(graph)
    sweep = _Sweep(graph)
    for node in graph.nodes:
        sweep.take(_simplified(node))
    return _without_dead_code(sweep.nodes(), graph.output)


class _Sweep:
    """The nodes taken so far, by the value they make; a dict keeps their order."""

    def __init__(self, graph: Graph) -> None:
        self.uses = graph.uses
        self.made: dict[Value, Node] = {}

    def nodes(self) -> tuple[Node, ...]:
        """In running order, each once (a tail is listed under its own value, too)."""
        return tuple(node for value, node in self.made.items() if value is node.out)

    def take(self, node: Node) -> None:
        if isinstance(node, Affine) and (self.fold(node) or self.follow(node) or self.add_tail(node)):
            return
        if isinstance(node, Binary) and node.op == "add" and self.sum(node):
            return
        self.made[node.out] = node

    def only_use(self, value: Value) -> bool:
        return self.uses[value] == 1

    def absorb(self, old: Value, node: Node) -> None:
        """Replace the maker of `old` by `node`, here: what it additionally reads is known only now."""
        del self.made[old]
        self.made[node.out] = node

    def fold(self, node: Affine) -> bool:
        """Scale and shift go into the weights before them, the activation into the last step."""
        maker = self.made.get(node.x)
        if not isinstance(maker, Conv | Linear) or not self.only_use(node.x) or maker.activation:
            return False
        if isinstance(maker, Conv) and (maker.residual or maker.tail):
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
        """An activation alone becomes part of the step that made its operand."""
        maker = self.made.get(node.x)
        if node.scale is not None or node.shift is not None or not self.only_use(node.x):
            return False
        if isinstance(maker, Conv) and maker.tail is not None and node.x is maker.tail.out:
            if maker.tail.activation:
                return False
            self.set_tail(maker, replace(maker.tail, out=node.out, activation=node.activation))
            return True
        if not isinstance(maker, Conv | Affine | Binary) or maker.activation:
            return False
        if isinstance(maker, Conv) and maker.tail:
            return False
        self.absorb(node.x, replace(maker, out=node.out, activation=node.activation))
        return True

    def add_tail(self, node: Affine) -> bool:
        maker = self.made.get(node.x)
        if not isinstance(maker, Conv) or maker.tail is not None or node.x is not maker.out:
            return False
        self.set_tail(maker, node)
        return True

    def set_tail(self, maker: Conv, tail: Affine) -> None:
        if maker.tail is not None:
            del self.made[maker.tail.out]
        fused = replace(maker, tail=tail)
        # The convolution keeps its place: its other readers may come before the tail's.
        self.made[maker.out] = fused
        self.made[tail.out] = fused

    def sum(self, node: Binary) -> bool:
        """`conv(x) + r`: the sum is taken while the convolution's result is still in registers."""
        order = {value: position for position, value in enumerate(self.made)}
        for mine, other in sorted(
            ((node.a, node.b), (node.b, node.a)), key=lambda pair: order.get(pair[0], -1), reverse=True
        ):
            maker = self.made.get(mine)
            if not isinstance(maker, Conv) or not self.only_use(mine) or other.shape != mine.shape:
                continue
            if maker.activation or maker.residual or maker.tail:
                continue
            self.absorb(mine, replace(maker, out=node.out, residual=other, activation=node.activation))
            return True
        return False


def _simplified(node: Node) -> Node:
    """What a node on images of one pixel comes to: a matrix product for a convolution, nothing for a mean."""
    if isinstance(node, Mean) and node.x.pixels == 1:
        return Reshape(node.name, node.out, node.x)
    if not isinstance(node, Conv) or node.x.pixels != 1 or node.out.pixels != 1 or node.groups != 1:
        return node
    # Of the kernel only the tap that falls on the pixel sees anything but padding.
    (row, no_row), (col, no_col) = (divmod(p, d) for p, d in zip(node.padding, node.dilation, strict=True))
    inside = row < node.kernel[0] and col < node.kernel[1]
    if no_row or no_col or not inside:
        return node
    return Linear(node.name, node.out, node.x, node.weight[:, :, row, col], node.bias)


def _split_affines_of_concats(graph: Graph) -> Graph:
    """`affine(cat(a, b))` becomes `cat(affine(a), affine(b))`, which needs no copy of the joined channels.

    In a DenseNet every layer normalises all channels made so far: this saves a copy of them for each.
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
            nodes.append(Affine(node.name, value, part, scale, shift, node.activation))
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
        if isinstance(node, Conv) and node.tail is not None:
            tail = node.tail if uses[node.tail.out] else None
            node = replace(node, tail=tail, keeps_out=uses[node.out] > 0)
        kept.append(node)
    return Graph(tuple(kept), output)
