"""A tensor's elements as they lie in memory: one flat run, floats read as integers of the same bits."""

from __future__ import annotations

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
