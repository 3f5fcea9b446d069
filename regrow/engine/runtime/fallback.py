"""Runs a graph with torch: what the engine does where there is no compiler, and what its results are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from regrow.engine.frontend.graph import (
    Act,
    Activation,
    Affine,
    Binary,
    Concat,
    Conv,
    Graph,
    Input,
    Linear,
    Mean,
    Node,
    Pool,
    Reshape,
    Value,
    pool_weights,
)

Values = dict[Value, Tensor]


class TorchRunner:
    """A graph as a function of a batch, in float32."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.weights = {
            node: (node.weight.float().contiguous(), node.bias.float().contiguous()) for node in graph.weighted()
        }

    def __call__(self, x: Tensor) -> Tensor:
        """The output for the batch `x`."""
        values: Values = {}
        with torch.no_grad():
            for node in self.graph.nodes:
                self.step(node, values, x)
        return values[self.graph.output]

    def step(self, node: Node, values: Values, x: Tensor) -> None:
        """Compute what one node makes."""
        if isinstance(node, Input):
            values[node.out] = x
        elif isinstance(node, Conv):
            self.conv(node, values)
        elif isinstance(node, Linear):
            values[node.out] = self.linear(node, values)
        elif isinstance(node, Affine):
            values[node.out] = affine(node, values[node.x])
        elif isinstance(node, Binary):
            combine = torch.add if node.op == "add" else torch.mul
            values[node.out] = activate(combine(values[node.a], values[node.b]), node.activation)
        elif isinstance(node, Pool):
            values[node.out] = pool(node, values[node.x])
        elif isinstance(node, Mean):
            values[node.out] = values[node.x].mean((2, 3)).reshape(-1, *node.out.shape)
        elif isinstance(node, Reshape):
            values[node.out] = values[node.x].reshape(-1, *node.out.shape)
        elif isinstance(node, Concat):
            values[node.out] = torch.cat([values[part] for part in node.parts], 1)
        else:
            raise TypeError(f"torch is not told how to run {type(node).__name__}")

    def conv(self, node: Conv, values: Values) -> None:
        """Convolution, residual, activation and tail."""
        weight, bias = self.weights[node]
        reach = [d * (k - 1) + 1 for d, k in zip(node.dilation, node.kernel, strict=True)]
        x = F.pad(values[node.x], far_padding(node, reach))
        y = F.conv2d(x, weight, bias, node.stride, 0, node.dilation, node.groups)
        if node.residual is not None:
            y = y + values[node.residual]
        y = values[node.out] = activate(y, node.activation)
        if node.tail is not None:
            values[node.tail.out] = affine(node.tail, y)

    def linear(self, node: Linear, values: Values) -> Tensor:
        """Matrix product and activation."""
        weight, bias = self.weights[node]
        y = F.linear(values[node.x].flatten(1), weight, bias)
        return activate(y, node.activation).reshape(-1, *node.out.shape)


def far_padding(node: Conv | Pool, reach: list[int]) -> tuple[int, int, int, int]:
    """Padding for `F.pad`: what is given before the image, and after it as much as the output's size asks for."""
    after = [
        (out - 1) * s + r - size - p
        for out, s, r, size, p in zip(node.out.size, node.stride, reach, node.x.size, node.padding, strict=True)
    ]
    return (node.padding[1], after[1], node.padding[0], after[0])


def pool(node: Pool, x: Tensor) -> Tensor:
    """Windows of the exact number that the output has."""
    padding = far_padding(node, list(node.kernel))
    if node.op == "max":
        return F.max_pool2d(F.pad(x, padding, value=-torch.inf), node.kernel, node.stride)
    sums = F.avg_pool2d(F.pad(x, padding), node.kernel, node.stride, divisor_override=1)
    return sums * torch.from_numpy(pool_weights(node)).float()


def affine(node: Affine, x: Tensor) -> Tensor:
    """Scale, shift and activate."""
    shape = (-1, *(1 for _ in node.x.shape[1:]))
    if node.scale is not None:
        x = x * node.scale.float().reshape(shape)
    if node.shift is not None:
        x = x + node.shift.float().reshape(shape)
    return activate(x, node.activation)


FUNCTIONS: dict[Act, Callable[[Tensor], Tensor]] = {
    Act.RELU: F.relu,
    Act.SIGMOID: torch.sigmoid,
    Act.SILU: F.silu,
    Act.HARDSIGMOID: F.hardsigmoid,
    Act.HARDSWISH: F.hardswish,
}


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The element-wise function."""
    if activation.kind is Act.CLAMP:
        return x.clamp(activation.low, activation.high)
    return FUNCTIONS[activation.kind](x) if activation else x
