"""Runs a graph with torch, node by node: the engine without a C compiler, and the reference of its tests."""

from __future__ import annotations

import time
from math import prod

import torch
from torch import Tensor

from regrow.engine.frontend.graph import Graph, Node, Value
from regrow.engine.ops.reshape import Input
from regrow.engine.runtime.model import LayerTime, ModelBytes, Profile

Values = dict[Value, Tensor]


class TorchRunner:
    """A graph as a function of a batch, in float32."""

    native = False

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the output for the batch `x`."""
        values: Values = {self.graph.input: x}
        for node in self.graph.nodes:
            self.step(node, values)
        return values[self.graph.output]

    def step(self, node: Node, values: Values) -> None:
        """Compute the outputs of one node."""
        if isinstance(node, Input):
            return
        with torch.no_grad():
            results = node.reference(*(values[value] for value in node.inputs))
        results = results if isinstance(results, tuple) else (results,)
        values.update(zip(node.outputs, results, strict=True))

    @property
    def sizes(self) -> ModelBytes:
        """The memory it holds."""
        weights = sum(node.weight.numel() + node.bias.numel() for node in self.graph.weighted())
        largest = max(prod(value.shape) for node in self.graph.nodes for value in node.outputs)
        return ModelBytes(4 * weights, 4 * largest)

    def run(self, x: Tensor, y: Tensor) -> None:
        """Write the output for `x` to `y`."""
        y.copy_(self(x))

    def profile(self, x: Tensor, y: Tensor, repeat: int) -> Profile:
        """Return the minimum time of each node."""
        seconds = dict.fromkeys(self.graph.nodes, float("inf"))
        for _ in range(repeat):
            values: Values = {self.graph.input: x}
            for node in self.graph.nodes:
                start = time.perf_counter()
                self.step(node, values)
                seconds[node] = min(seconds[node], time.perf_counter() - start)
        kinds = ((node, type(node).__name__.lower()) for node in self.graph.nodes)
        return Profile(tuple(LayerTime(node.name, kind, seconds[node], node.macs) for node, kind in kinds))
