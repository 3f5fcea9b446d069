"""Elements as they lie in memory: one flat run, floats read as integers of the same bits, masks in one bit each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_dense(tensor: Tensor) -> bool:
    """Tell whether the elements fill a run of memory, each its own place, in whatever order of dimensions."""
    by_stride = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.is_contiguous() or tensor.permute(by_stride).is_contiguous()


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return a flat view in the order of the elements in memory, whatever the memory format (dense tensors only)."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def bits(tensor: Tensor) -> Tensor:
    """Return floats as integers of their size and bits, anything else as it is."""
    return tensor.view(_INTEGERS[tensor.itemsize]) if tensor.is_floating_point() else tensor


def bit_view(tensor: Tensor) -> Any:
    """Return the bits of the elements in memory order; as an array on the CPU."""
    flat = bits(in_memory_order(tensor))
    return flat.numpy() if flat.device.type == "cpu" else flat


def like(model: Tensor, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `tensor` on the device and in the memory format of `model`; itself if that is what it has."""
    if (tensor.device, tensor.stride(), tensor.dtype) == (model.device, model.stride(), dtype):
        return tensor
    return torch.empty_like(model, dtype=dtype).copy_(tensor)


def pack(mask: Tensor) -> Tensor:
    """Return the mask in one bit per weight, in row-major order."""
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
