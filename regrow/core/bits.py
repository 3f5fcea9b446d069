"""Tensors as bits: flat and integer views, packed masks, and random numbers that are a hash of their position."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# The constants of SplitMix64.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))
_numpy_devices = {"cpu"}


def uses_numpy(tensor: Tensor) -> bool:
    """Return whether NumPy computes with the tensor: on the CPU, where it is several times faster than torch."""
    return tensor.device.type in _numpy_devices


def on_one_accelerator(tensors: Iterable[Tensor]) -> bool:
    """Return whether all tensors are on the same accelerator."""
    tensors = list(tensors)
    return len({tensor.device for tensor in tensors}) == 1 and not uses_numpy(tensors[0])


@contextmanager
def device_path() -> Iterator[None]:
    """Treat CPU tensors like those of an accelerator inside a `with` block, to test and measure that path."""
    before = set(_numpy_devices)
    _numpy_devices.clear()
    try:
        yield
    finally:
        _numpy_devices.update(before)


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements fill a contiguous block of memory without overlap, in any order of dimensions."""
    by_stride = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.is_contiguous() or tensor.permute(by_stride).is_contiguous()


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return a flat view in the order of the elements in memory, for any memory format (dense tensors only)."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def bits(tensor: Tensor) -> Tensor:
    """Return floats as integers of the same size and bits; other tensors are returned as they are."""
    return tensor.view(_INTEGERS[tensor.itemsize]) if tensor.is_floating_point() else tensor


def largest_key(dtype: torch.dtype) -> int:
    """Return all bits of a float but its sign, as an integer."""
    return (1 << (8 * dtype.itemsize - 1)) - 1


def bit_view(tensor: Tensor) -> Any:
    """Return the bits of the elements in memory order, as a NumPy array where NumPy computes."""
    flat = bits(in_memory_order(tensor))
    return flat.numpy() if uses_numpy(flat) else flat


def largest_magnitude(tensor: Tensor) -> float:
    """Return the largest magnitude; 0 without elements, as a process may have none of a layer's rows."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def like(model: Tensor, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `tensor` on the device and in the memory format of `model`; a copy only if they differ."""
    if (tensor.device, tensor.stride(), tensor.dtype) == (model.device, model.stride(), dtype):
        return tensor
    return torch.empty_like(model, dtype=dtype).copy_(tensor)


def pack(mask: Tensor) -> Tensor:
    """Return the mask as one bit per weight, in row-major order."""
    return torch.from_numpy(np.packbits(mask.cpu().reshape(-1).numpy()))


def unpack(bits: Tensor, shape: torch.Size, name: str) -> Tensor:
    """Return the mask that `pack` was given."""
    count = shape.numel()
    if bits.dtype is not torch.uint8 or bits.numel() != (count + 7) // 8:
        raise ValueError(
            f"the packed mask of {name} has {bits.numel()} values of {bits.dtype}, "
            f"its shape {tuple(shape)} needs {(count + 7) // 8} of torch.uint8"
        )
    return torch.from_numpy(np.unpackbits(bits.cpu().numpy(), count=count).astype(bool)).view(shape)


def uniform(like: Tensor, *, seed: int, layer: str, step: int, offset: int = 0) -> Tensor:
    """Return a number in (0, 1) for every element of `like`, which depends on its row-major index plus `offset`.

    A keyed counter is hashed with the finalizer of SplitMix64 (Steele et al. 2014). torch's generators are neither used
    nor changed.
    """
    key = hashlib.blake2b(f"{seed}/{layer}/{step}".encode(), digest_size=8).digest()
    indices = torch.arange(offset + 1, offset + like.numel() + 1, device=like.device)
    bits = indices * _GAMMA + int.from_bytes(key, "little", signed=True)
    for shift, factor in _ROUNDS:
        bits = (bits ^ _shift(bits, shift)) * factor
    return (_shift(bits, 11).double() + 0.5).mul_(2.0**-53).view(like.shape)


def _shift(bits: Tensor, count: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift copies the sign bit."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
