"""A tensor of a state dict as codes and back: weights in the precision asked for, all else bit by bit."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regrow.deploy.coding.bits import Bytes
from regrow.deploy.coding.index import DTYPES, EXACT, RAW, Row, forms
from regrow.deploy.coding.sparse_code import FORMATS, BitPattern, Code, NonZeros, decode, encode, limit_bits

_TORCH = {form: dtype for dtype, form in EXACT.items()}
_INTEGERS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class CodedTensor:
    """A row of the index and what it describes: codes, or the bytes of a raw tensor."""

    row: Row
    codes: tuple[Code, ...]
    raw: Bytes

    @property
    def nonzeros(self) -> int:
        """How many numbers are not zero; in a raw tensor, all of them count."""
        return self.codes[0].layout.nonzeros if self.codes else prod(self.row.shape)

    @property
    def limit_bits(self) -> float:
        """The fewest bits by the entropies of masks and exponents; raw bytes count in full."""
        return 8 * len(self.raw) + sum(map(limit_bits, self.codes))


def encode_tensor(name: str, tensor: Tensor, dtype: str) -> CodedTensor:
    """Code a contiguous tensor: in `dtype` if it is a weight (of two dimensions or more), else exactly."""
    if tensor.dtype not in DTYPES.values():
        raise TypeError(f"{name!r} is of {tensor.dtype}; a packed file holds {', '.join(DTYPES)}.")
    shape = tuple(tensor.shape)
    allowed = forms(tensor.dtype, shape)
    form = dtype if dtype in allowed else allowed[0]
    flat = tensor.reshape(-1)
    if form == RAW:
        return CodedTensor(Row(name, tensor.dtype, shape, RAW), (), flat.view(torch.uint8).numpy())
    if len(shape) > 1:
        flat = flat + 0.0  # A pruned weight is +0.0, also where the mask met a negative weight and left -0.0.
    if form == "int8":
        codes: tuple[Code, ...] = _quantize(name, flat.float().reshape(shape[0], -1))
    else:
        codes = (encode(_patterns(_cast(name, flat, form)), FORMATS[form]),)
    row = Row(name, tensor.dtype, shape, form, tuple(code.layout for code in codes))
    return CodedTensor(row, codes, np.zeros(0, np.uint8))


def decode_tensor(coded: CodedTensor) -> Tensor:
    """The tensor that was coded, in its own type; a ValueError if no tensor has this code."""
    row = coded.row
    if row.form == RAW:
        return _raw(coded)
    nonzeros = decode(coded.codes[0])
    if row.form == EXACT[row.dtype]:
        patterns = nonzeros.dense(prod(row.shape))
        return torch.from_numpy(patterns.view(f"<i{patterns.itemsize}")).view(row.dtype).reshape(row.shape)
    if row.form == "int8":
        scales = _floats(decode(coded.codes[1]).dense(row.shape[0]), "bf16")
        values = _dequantize(nonzeros, scales, row)
    else:
        values = _floats(nonzeros.values, row.form)
    dense = NonZeros(nonzeros.positions, values).dense(prod(row.shape))
    return torch.from_numpy(dense).to(row.dtype).reshape(row.shape)


def _raw(coded: CodedTensor) -> Tensor:
    if coded.row.dtype is torch.bool and (coded.raw > 1).any():
        raise ValueError("it has truth values that are neither 0 nor 1")
    tensor = torch.empty(coded.row.shape, dtype=coded.row.dtype)
    tensor.reshape(-1).view(torch.uint8).numpy()[:] = coded.raw
    return tensor


def _cast(name: str, weights: Tensor, form: str) -> Tensor:
    cast = weights.to(_TORCH[form])
    if bool((cast.isinf() & ~weights.isinf()).any()):
        peak = weights[weights.isfinite()].abs().max().item()
        raise ValueError(f"{name!r} has weights up to {peak:.3g}, beyond the range of {form}; use dtype='fp32'.")
    return cast


def _patterns(flat: Tensor) -> BitPattern:
    """The bits of floating-point numbers as unsigned integers."""
    size = flat.dtype.itemsize
    patterns: BitPattern = flat.view(_INTEGERS[size]).numpy().view(f"<u{size}")
    return patterns


def _floats(patterns: BitPattern, form: str) -> npt.NDArray[np.float32]:
    """The numbers behind the bits of a 16-bit format."""
    if form == "fp16":
        return patterns.view("<f2").astype("<f4")
    return (patterns.astype("<u4") << 16).view("<f4")


def _quantize(name: str, channels: Tensor) -> tuple[Code, ...]:
    """Symmetric 8-bit weights with one scale per output channel, which is a row of `channels`.

    The scale is the channel's largest magnitude / 127, rounded up to bf16 so that nothing is clipped. Weights
    move by at most half a scale, 1/252 of the largest in the channel; those below half a scale become zero.
    """
    if not bool(channels.isfinite().all()):
        raise ValueError(f"{name!r} has weights that are not finite, which int8 cannot hold; use dtype='fp32'.")
    weights = channels.numpy()
    needed: npt.NDArray[Any] = np.abs(weights).max(axis=1).astype("<f4") / np.float32(127)
    patterns = ((needed.view("<u4") + np.uint32(0xFFFF)) >> 16).astype("<u2")
    scales = _floats(patterns, "bf16")[:, None]
    steps = np.rint(np.divide(weights, scales, out=np.zeros_like(weights), where=scales > 0))
    codes = np.abs(steps).astype(np.uint8) | (steps < 0).astype(np.uint8) << 7
    return encode(codes.ravel(), FORMATS["int8"]), encode(patterns, FORMATS["bf16"])


def _dequantize(
    codes: NonZeros[np.unsignedinteger[Any]], scales: npt.NDArray[np.float32], row: Row
) -> npt.NDArray[np.float32]:
    where = np.arange(prod(row.shape)) if codes.positions is None else codes.positions
    # The scale was rounded up, so the largest of numbers would come back as infinity: it stays the largest.
    with np.errstate(over="ignore", invalid="ignore"):
        magnitudes = (codes.values & 127).astype(np.float32) * scales[where // prod(row.shape[1:])]
    finite = magnitudes.clip(max=np.float32(torch.finfo(row.dtype).max))
    return np.where(codes.values >> 7, -finite, finite)
