"""Masks for measuring speed without a training: the density of a layer falls with its size, as in trained networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPONENT = -0.3
"""A layer of n weights keeps a share proportional to n^-0.3 of them."""


def prune_synthetically(model: nn.Module, sparsity: float, *, seed: int = 0) -> None:
    """Set `sparsity` of the weights of `model` to zero in place, at random positions, large layers more than small."""
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be in [0, 1), got {sparsity}")
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight, density in zip(weights, densities([weight.numel() for weight in weights], sparsity), strict=True):
            weight.mul_(torch.rand(weight.shape, generator=generator) < density)


def densities(sizes: list[int], sparsity: float) -> list[float]:
    """The share of each layer that is kept, so that `sparsity` of all weights are zero."""
    numbers: Tensor = torch.tensor(sizes, dtype=torch.float64)
    low, high = 0.0, float(numbers.max()) ** -EXPONENT
    for _ in range(60):
        middle = (low + high) / 2
        kept = ((middle * numbers**EXPONENT).clamp(max=1) * numbers).sum()
        low, high = (low, middle) if kept > (1 - sparsity) * numbers.sum() else (middle, high)
    shares: list[float] = (high * numbers**EXPONENT).clamp(max=1).tolist()
    return shares
