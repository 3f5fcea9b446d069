"""Random numbers as a function of (seed, layer, step, element), equal on all ranks and in resumed runs."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))


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
