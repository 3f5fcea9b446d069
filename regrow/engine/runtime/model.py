"""The compiled model that users call, its profile, and the runner that uses torch if there is no C compiler."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regrow.core.modules import has_values
from regrow.engine.frontend.graph import Graph, Node, Value, WeightedNode
from regrow.engine.ops.reshape import Input

CPU = torch.device("cpu")
Values = dict[Value, Tensor]


def noise(input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return a random image to measure with and an empty result, independent of torch's defaults."""
    generator = torch.Generator(CPU).manual_seed(0)
    image = torch.randn(1, *input_shape, generator=generator, dtype=torch.float32, device=CPU)
    return image, torch.empty(1, *output_shape, dtype=torch.float32, device=CPU)


@dataclass(frozen=True)
class LayerTime:
    """The time of one operation."""

    name: str
    kind: str
    seconds: float
    macs: int

    @property
    def gmacs_per_second(self) -> float:
        """Billions of multiply-accumulates with non-zero weights per second."""
        return self.macs / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """The time of every operation; `print` shows it as a table."""

    layers: tuple[LayerTime, ...]

    @property
    def seconds(self) -> float:
        """The time of all operations together."""
        return sum(layer.seconds for layer in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-accumulates with non-zero weights."""
        return sum(layer.macs for layer in self.layers)

    def __str__(self) -> str:
        return self.table()

    def table(self, peak: float | None = None) -> str:
        """Return a table of all layers; with `peak` (multiply-accumulates per second), also in percent of it."""
        width = max([len("all"), *(len(layer.name) for layer in self.layers)])
        total = LayerTime("all", "", self.seconds, self.macs)
        rows = [f"{'layer':{width}}  {'':9}  {'µs':>9}  {'k MACs':>10}  {'GMAC/s':>6}{'  % of peak' if peak else ''}"]
        for layer in (*self.layers, total):
            row = f"{layer.name:{width}}  {layer.kind:9}  {layer.seconds * 1e6:9.1f}  {layer.macs / 1e3:10,.0f}"
            if layer.macs:
                row += f"  {layer.gmacs_per_second:6.1f}"
                row += f"  {1e11 * layer.gmacs_per_second / peak:9.0f}" if peak else ""
            rows.append(row)
        return "\n".join(rows)


@dataclass(frozen=True)
class ModelBytes:
    """Memory of a compiled model in bytes: constants once, an arena for every concurrent call and thread."""

    constants: int
    arena: int


class Runner(Protocol):
    """Computes the batches of a `CompiledModel`; `native` if it uses the kernels and not torch."""

    native: bool

    @property
    def sizes(self) -> ModelBytes:
        """The memory it holds."""

    def run(self, x: Tensor, y: Tensor) -> None:
        """Write the output for the contiguous float32 batch `x` to `y`."""

    def profile(self, x: Tensor, y: Tensor, repeat: int) -> Profile:
        """Return the minimum time of each operation."""


def _plain(x: Tensor) -> Tensor:
    """Return `x` as a contiguous float32 tensor on the CPU."""
    if x.layout is not torch.strided or x.is_complex() or x.is_quantized:
        raise TypeError(f"expected a dense tensor of real numbers, got {x.dtype} in the layout {x.layout}")
    if x.is_cpu:
        _check_values(x)  # torch itself crashes when it copies from freed memory
    return x.detach().to(CPU, torch.float32).resolve_neg().contiguous()


def _check_values(tensor: Tensor) -> None:
    if not has_values(tensor):
        raise ValueError(
            f"expected a tensor with values in memory, got a {type(tensor).__name__} without: a compiled model cannot "
            "be traced or called inside a FakeTensorMode or a function of torch.func (vmap, grad, functionalize), and "
            "the storage of its input must not be freed"
        )


class CompiledModel:
    """A network compiled for inference on this machine's CPU; call it with a batch.

    It takes torch tensors or numpy arrays and returns the same kind. Contiguous float32 data is not copied. The batch
    may have any size, and several threads may call it at once. `native` is False if there is no C compiler and torch
    runs the model.
    """

    def __init__(self, runner: Runner, *, input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> None:
        self.input_shape, self.output_shape = input_shape, output_shape
        self.native = runner.native
        self._runner = runner
        self._last = self._accepted(torch.Size((1, *input_shape)))  # most batches have the same shape as the last one

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]: ...
    def __call__(self, x: Tensor | NDArray[Any]) -> Tensor | NDArray[np.float32]:
        """Compute the output for the batch `x`."""
        if isinstance(x, np.ndarray):
            if np.iscomplexobj(x):
                raise TypeError(f"expected real numbers, got an array of {x.dtype}")
            array = np.ascontiguousarray(x, np.float32)
            own = array if array.flags.writeable else array.copy()  # torch does not wrap read-only arrays
            result: NDArray[np.float32] = self(torch.from_numpy(own)).numpy()
            return result
        if not isinstance(x, Tensor):
            raise TypeError(f"expected a torch tensor or a numpy array, got {type(x).__name__}")
        # A small network takes as long as a dozen calls into torch, so there are as few as possible.
        shape, like = self._last
        if x.shape != shape:
            shape, like = self._last = self._accepted(x.shape)
        # torch computes a negative view when it is read, and the kernels would not.
        if x.dtype is not torch.float32 or x.layout is not torch.strided or not x.is_contiguous() or x.is_neg():
            x = _plain(x)
        elif not x.is_cpu:
            x = x.detach().to(CPU)
        _check_values(x)
        y = torch.empty_like(like)
        _check_values(y)
        self._runner.run(x, y)
        return y

    def _accepted(self, shape: torch.Size) -> tuple[torch.Size, Tensor]:
        """Check the shape of a batch; return it, and a tensor like the result, independent of torch's defaults."""
        if shape[1:] != self.input_shape:
            raise ValueError(f"expected a batch of {self.input_shape}, got an array of shape {tuple(shape)}")
        return shape, torch.empty((shape[0], *self.output_shape), dtype=torch.float32, device=CPU)

    def __repr__(self) -> str:
        by = "" if self.native else ", run by torch"
        return f"CompiledModel({self.input_shape} -> {self.output_shape}{by})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "a compiled model cannot be pickled; call regrow.compile in the new process (kernels are cached)"
        )

    @property
    def sizes(self) -> ModelBytes:
        """The memory it holds, in bytes."""
        return self._runner.sizes

    def profile(self, *, repeat: int = 20) -> Profile:
        """Return the minimum time of each operation over `repeat` runs on one random image."""
        return self._runner.profile(*noise(self.input_shape, self.output_shape), repeat)


class TorchRunner:
    """Runs a graph with torch, node by node, in float32; also the reference in tests of the engine."""

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
        layers = [node for node in self.graph.nodes if isinstance(node, WeightedNode)]
        weights = sum(node.weight.numel() + node.bias.numel() for node in layers)
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
