"""Convert tensors to bit patterns and back: weights in the requested precision, all other tensors exactly."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regrow.core.bits import bits
from regrow.files.entropy import Bytes
from regrow.files.sparse_array import FORMATS, BitPattern, SparseArray, limit_bits

Array = SparseArray[np.unsignedinteger[Any]]

RAW = "raw"
EXACT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
"""The format that stores each floating-point type exactly."""

_OTHERS = (
    torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*EXACT, *_OTHERS)}
"""Tensor types that a packed file can hold, by name."""

_TORCH = {form: dtype for dtype, form in EXACT.items()}


@dataclass(frozen=True)
class TensorSpec:
    """Name, type and shape of a tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def dense_bytes(self) -> int:
        """Bytes of the tensor in memory."""
        return prod(self.shape) * self.dtype.itemsize

    def stored_as(self, dtype: str) -> str:
        """Return the format of the tensor in a file of `dtype`.

        Only weights, which have two dimensions or more, may lose precision; integers and booleans are stored raw.
        """
        if self.dtype not in EXACT or 0 in self.shape:
            return RAW
        exact = EXACT[self.dtype]
        lossy = tuple(FORMATS) if exact == "fp32" else ("int8",)
        return dtype if len(self.shape) > 1 and dtype in lossy else exact

    def to_json(self) -> list[object]:
        """Return the fields as a list for JSON."""
        return [self.name, str(self.dtype).removeprefix("torch."), list(self.shape)]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as stored in a packed file: bit patterns of its numbers (int8: scales, then codes), or raw bytes."""

    spec: TensorSpec
    form: str
    arrays: tuple[Array, ...]
    raw: Bytes

    @property
    def nonzeros(self) -> int:
        """Number of non-zeros; all elements of a raw tensor count."""
        return int(np.count_nonzero(self.arrays[-1].values)) if self.arrays else prod(self.spec.shape)

    @property
    def limit_bits(self) -> float:
        """Entropy limit in bits, from masks and exponents; raw bytes count in full."""
        if not self.arrays:
            return 8 * len(self.raw)
        *scales, numbers = self.arrays
        limit = limit_bits(numbers, prod(self.spec.shape), FORMATS[self.form])
        return limit + sum(limit_bits(array, self.spec.shape[0], FORMATS["bf16"]) for array in scales)


def spec_of(name: str, tensor: Tensor) -> TensorSpec:
    """Return the specification of `tensor`; raise a TypeError if a packed file cannot hold its type."""
    if tensor.dtype not in DTYPES.values():
        raise TypeError(f"{name!r} is of {tensor.dtype}; a packed file holds {', '.join(DTYPES)}.")
    return TensorSpec(name, tensor.dtype, tuple(tensor.shape))


def patterns_of(name: str, tensor: Tensor, form: str) -> list[BitPattern]:
    """Return the arrays of bit patterns of a contiguous tensor in the format `form`."""
    flat = tensor.reshape(-1)
    if form == RAW:
        return [flat.view(torch.uint8).numpy()]
    if tensor.dim() > 1:
        flat = flat + 0.0  # masking a negative weight leaves -0.0; store it as +0.0
    if form == "int8":
        return list(_quantize(name, flat.float().reshape(tensor.shape[0], -1)))
    cast = bits(_cast(name, flat, form)).numpy()
    return [cast.view(f"<u{cast.itemsize}")]


def restored(stored: StoredTensor) -> Tensor:
    """Return the stored tensor in its own type; raise a ValueError if its data is invalid."""
    spec, form = stored.spec, stored.form
    if form == RAW:
        return _raw(stored)
    *scales, numbers = stored.arrays
    if form == EXACT[spec.dtype]:
        patterns = numbers.dense(prod(spec.shape))
        return torch.from_numpy(patterns.view(f"<i{patterns.itemsize}")).view(spec.dtype).reshape(spec.shape)
    if form == "int8":
        values = _dequantize(numbers, _floats(scales[0].dense(spec.shape[0]), "bf16"), spec)
    else:
        values = _floats(numbers.values, form)
    dense = SparseArray(numbers.positions, values).dense(prod(spec.shape))
    return torch.from_numpy(dense).to(spec.dtype).reshape(spec.shape)


def _raw(stored: StoredTensor) -> Tensor:
    if stored.spec.dtype is torch.bool and (stored.raw > 1).any():
        raise ValueError("it has booleans that are neither 0 nor 1")
    tensor = torch.empty(stored.spec.shape, dtype=stored.spec.dtype)
    tensor.reshape(-1).view(torch.uint8).numpy()[:] = stored.raw
    return tensor


def _cast(name: str, weights: Tensor, form: str) -> Tensor:
    cast = weights.to(_TORCH[form])
    if bool((cast.isinf() & ~weights.isinf()).any()):
        peak = weights[weights.isfinite()].abs().max().item()
        raise ValueError(f"{name!r} has weights up to {peak:.3g}, beyond the range of {form}; use dtype='fp32'.")
    return cast


def _floats(patterns: BitPattern, form: str) -> npt.NDArray[np.float32]:
    """Convert bit patterns of a 16-bit format to float32."""
    if form == "fp16":
        return patterns.view("<f2").astype("<f4")
    return (patterns.astype("<u4") << 16).view("<f4")


def _quantize(name: str, channels: Tensor) -> tuple[BitPattern, BitPattern]:
    """Return the scale of each output channel (a row of `channels`) and symmetric 8-bit codes.

    The scale is the channel's largest magnitude / 127, rounded up to bf16 so that no weight is clipped. A weight
    changes by at most half a scale (1/252 of the largest one in the channel); below half a scale it becomes zero.
    """
    if not bool(channels.isfinite().all()):
        raise ValueError(f"{name!r} has weights that are not finite, which int8 cannot hold; use dtype='fp32'.")
    weights = channels.numpy()
    needed: npt.NDArray[Any] = np.abs(weights).max(axis=1).astype("<f4") / np.float32(127)
    patterns = ((needed.view("<u4") + np.uint32(0xFFFF)) >> 16).astype("<u2")
    scales = _floats(patterns, "bf16")[:, None]
    steps = np.rint(np.divide(weights, scales, out=np.zeros_like(weights), where=scales > 0))
    codes = np.abs(steps).astype(np.uint8) | (steps < 0).astype(np.uint8) << 7
    return patterns, codes.ravel()


def _dequantize(codes: Array, scales: npt.NDArray[np.float32], spec: TensorSpec) -> npt.NDArray[np.float32]:
    where = np.arange(prod(spec.shape)) if codes.positions is None else codes.positions
    # The scale was rounded up, so the largest float could become infinity: clip it to the largest float.
    with np.errstate(over="ignore", invalid="ignore"):
        magnitudes = (codes.values & 127).astype(np.float32) * scales[where // prod(spec.shape[1:])]
    finite = magnitudes.clip(max=np.float32(torch.finfo(spec.dtype).max))
    return np.where(codes.values >> 7, -finite, finite)
