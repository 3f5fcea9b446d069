"""Quantizers and projections for `Feedback`, each a function of one weight tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.core.units import check_nm, in_groups, n_largest, parse_nm

Compressor = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sign:
    """One bit per weight: ±the mean magnitude of the tensor, or ±1 with `scaled=False`.

    BinaryConnect (Courbariaux et al. 2015) is `scaled=False` with w clipped to [-1, 1] after every step. A compressor
    does not change w: clip it in your loop, under `with pruner.dense():`.
    """

    scaled: bool = True

    def __call__(self, w: Tensor) -> Tensor:
        """Return sign(w), where zero counts as positive."""
        size = w.abs().mean() if self.scaled else torch.ones((), dtype=w.dtype, device=w.device)
        return torch.where(w < 0, -size, size)


@dataclass(frozen=True)
class Uniform:
    """`bits` per weight: 2^bits − 1 levels at equal distances, from minus to plus the largest magnitude."""

    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise ValueError(f"bits must be from 2 to 16, got {self.bits} (Sign() is one bit)")

    def __call__(self, w: Tensor) -> Tensor:
        """Return the nearest levels."""
        step = w.abs().max() / (2 ** (self.bits - 1) - 1)
        return torch.where(step > 0, (w / step).round() * step, w)


@dataclass(frozen=True)
class NM:
    """The `n` largest of every `m` neighbors along dimension 1, zeros elsewhere.

    Dimension 1 has the input channels, except in transposed convolutions: there, `unit="2:4"` of the pruning methods
    groups dimension 0.
    """

    n: int
    m: int

    def __post_init__(self) -> None:
        check_nm(self.n, self.m)

    def __call__(self, w: Tensor) -> Tensor:
        """Return w with the smallest of each group set to zero; of equal weights the last are kept."""
        groups = in_groups(w, self.m)
        return torch.where(n_largest(groups, self.n), groups, 0).flatten(-2).movedim(-1, 1)


@dataclass(frozen=True)
class LowRank:
    """The nearest matrix of rank `rank`; a convolution counts as (output channels) x (everything else)."""

    rank: int

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")

    def __call__(self, w: Tensor) -> Tensor:
        """Return the sum of the largest singular components."""
        left, values, right = torch.linalg.svd(w.flatten(1).float(), full_matrices=False)
        kept = slice(None, self.rank)
        nearest: Tensor = left[:, kept] * values[kept] @ right[kept]
        return nearest.to(w.dtype).view(w.shape)


def parse_compressor(name: str) -> Compressor:
    """Return the compressor with this name: "sign", "binary", "4 bits", "2:4" or "rank 8".

    >>> parse_compressor("4 bits")
    Uniform(bits=4)
    """
    if nm := parse_nm(name.replace(" ", "")):
        return NM(*nm)
    number = [int(digits) for digits in re.findall(r"\d+", name)]
    match re.sub(r"\d+", "#", name).replace(" ", ""):
        case "sign":
            return Sign()
        case "binary":
            return Sign(scaled=False)
        case "#bits":
            return Uniform(*number)
        case "rank#":
            return LowRank(*number)
    raise ValueError(f"compressor must be a function, or 'sign', 'binary', '4 bits', '2:4' or 'rank 8', got {name!r}")
