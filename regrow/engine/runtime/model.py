"""The compiled model that users call, what it tells about itself, and what it asks of a runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray

CPU = torch.device("cpu")


def noise(input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """An image to measure with and room for its result, whatever torch's defaults are."""
    generator = torch.Generator(CPU).manual_seed(0)
    image = torch.randn(1, *input_shape, generator=generator, dtype=torch.float32, device=CPU)
    return image, torch.empty(1, *output_shape, dtype=torch.float32, device=CPU)


@dataclass(frozen=True)
class LayerTime:
    """How long one operation took."""

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
        """Layer by layer as text; with `peak`, multiply-accumulates per second, also in per cent of that."""
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
class Sizes:
    """Bytes that a compiled model holds: its constants once, an arena for every call under way and thread."""

    constants: int
    arena: int


class Runner(Protocol):
    """What computes the batch behind a `CompiledModel`; `native` if that is the engine and not torch."""

    native: bool

    @property
    def sizes(self) -> Sizes:
        """The memory it holds."""

    def run(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the output for the contiguous float32 batch `x` to `y`."""

    def profile(self, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """The least time of each operation."""


class CompiledModel:
    """A network for inference on this machine's processor: call it with a batch, get the batch's results.

    Takes torch tensors or numpy arrays of float32, without copying them if they are contiguous, and returns the same
    kind. Any batch size; calls may come from several threads at once. `native` is False where there is no C compiler
    and torch does the work.
    """

    def __init__(self, runner: Runner, *, input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> None:
        self.input_shape, self.output_shape = input_shape, output_shape
        self.native = runner.native
        self._runner = runner
        self._last = self._accepted(torch.Size((1, *input_shape)))  # most batches have the shape of the one before

    @overload
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...
    @overload
    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]: ...
    def __call__(self, x: torch.Tensor | NDArray[Any]) -> torch.Tensor | NDArray[np.float32]:
        """The model's output for the batch `x`."""
        if isinstance(x, np.ndarray):
            array = np.ascontiguousarray(x, np.float32)
            own = array if array.flags.writeable else array.copy()  # torch does not take what must not be written
            result: NDArray[np.float32] = self(torch.from_numpy(own)).numpy()
            return result
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"expected a torch tensor or a numpy array, got {type(x).__name__}")
        # A small network takes no longer than a dozen calls into torch: there are as few of them as possible.
        shape, like = self._last
        if x.shape != shape:
            shape, like = self._last = self._accepted(x.shape)
        if x.dtype is not torch.float32 or not x.is_cpu or not x.is_contiguous():
            x = x.detach().to("cpu", torch.float32).contiguous()
        y = torch.empty_like(like)
        self._runner.run(x, y)
        return y

    def _accepted(self, shape: torch.Size) -> tuple[torch.Size, torch.Tensor]:
        """A batch's shape, and a tensor like its result, whatever torch's defaults are."""
        if shape[1:] != self.input_shape:
            raise ValueError(f"expected a batch of {self.input_shape}, got an array of shape {tuple(shape)}")
        return shape, torch.empty((shape[0], *self.output_shape), dtype=torch.float32, device=CPU)

    def __repr__(self) -> str:
        by = "" if self.native else ", run by torch"
        return f"CompiledModel({self.input_shape} -> {self.output_shape}{by})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "a compiled model belongs to its process: compile it in the other one, which the cache makes quick"
        )

    @property
    def sizes(self) -> Sizes:
        """The memory it holds, in bytes."""
        return self._runner.sizes

    def profile(self, *, repeat: int = 20) -> Profile:
        """The least time of each operation in `repeat` runs on one image of noise."""
        return self._runner.profile(*noise(self.input_shape, self.output_shape), repeat)
