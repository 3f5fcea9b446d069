"""Objectives with known constants, for which every quantity in the theorems can be computed.

A regularizer is part of the objective, as in the theorems: its gradient is also taken at the pruned model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regrow import data


class Problem(Protocol):
    """An L-smooth objective f over R^d with f ≥ `least`; μ-strongly convex if `mu` is positive."""

    @property
    def dimension(self) -> int:
        """Number d of weights."""

    @property
    def smoothness(self) -> float:
        """L, the Lipschitz constant of the gradient."""

    @property
    def mu(self) -> float:
        """Strong convexity; 0 if f is not strongly convex."""

    @property
    def least(self) -> float:
        """The minimum f(x*), or a lower bound if it is not known."""

    def value(self, x: Tensor) -> Tensor:
        """f(x), for one point or for each of several in rows."""

    def sample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random objective whose expected gradient is that of f."""


@dataclass(frozen=True)
class Quadratic:
    """½ (x−x*)ᵀA(x−x*) with independent Gaussian noise on the gradients."""

    matrix: Tensor
    optimum: Tensor
    noise: float = 0.0
    least: float = 0.0

    @staticmethod
    def random(dimension: int, *, mu: float, smoothness: float, noise: float = 0.0, seed: int = 0) -> Quadratic:
        """Return a rotated quadratic with curvatures from `mu` to `smoothness` and a dense optimum."""
        generator = torch.Generator().manual_seed(seed)
        axes, _ = torch.linalg.qr(torch.randn(dimension, dimension, generator=generator, dtype=torch.float64))
        curvatures = torch.linspace(mu, smoothness, dimension, dtype=torch.float64)
        optimum = torch.randn(dimension, generator=generator, dtype=torch.float64)
        return Quadratic((axes * curvatures) @ axes.T, optimum, noise)

    @property
    def dimension(self) -> int:
        """The number of weights."""
        return len(self.optimum)

    @property
    def smoothness(self) -> float:
        """The largest curvature."""
        return float(torch.linalg.eigvalsh(self.matrix)[-1])

    @property
    def mu(self) -> float:
        """The smallest curvature."""
        return float(torch.linalg.eigvalsh(self.matrix)[0])

    def value(self, x: Tensor) -> Tensor:
        """f(x)."""
        away = x - self.optimum
        return 0.5 * (away @ self.matrix * away).sum(-1)

    def sample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return f plus a random linear term."""
        slope = torch.randn(self.dimension, generator=generator, dtype=x.dtype)
        return self.value(x) + self.noise * (slope @ x)


@dataclass(frozen=True)
class Logistic:
    """Logistic regression with ½λ‖x‖² (`ridge`) or with the non-convex α Σ x²/(1+x²) (`bumps`), on minibatches.

    `features` are one example per row, `signs` their classes (±1). L is λ + 2α + a quarter of the largest eigenvalue of
    the features' second moment; μ is λ if there are no bumps.
    """

    features: Tensor
    signs: Tensor
    ridge: float = 0.0
    bumps: float = 0.0
    batch: int = 32
    _moment: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        moment = self.features.T @ self.features / len(self.features)
        object.__setattr__(self, "_moment", float(torch.linalg.eigvalsh(moment)[-1]))

    @staticmethod
    def digits(*, ridge: float = 0.0, bumps: float = 0.0, batch: int = 32) -> Logistic:
        """Return the problem of whether a digit is even, from its 64 pixels; examples are scaled to length one."""
        images = data.load("digits", "train")
        assert isinstance(images, data.ImageSet)  # small enough to be in memory
        pixels = images.images.flatten(1).double()
        return Logistic(F.normalize(pixels), 1.0 - 2.0 * (images.labels % 2).double(), ridge, bumps, batch)

    @property
    def dimension(self) -> int:
        """The number of weights."""
        return self.features.shape[1]

    @property
    def smoothness(self) -> float:
        """λ + 2α + λ_max/4: the logistic loss bends by at most 1/4, a bump by at most 2."""
        return self.ridge + 2 * self.bumps + self._moment / 4

    @property
    def mu(self) -> float:
        """λ, unless the objective is not convex."""
        return 0.0 if self.bumps else self.ridge

    @property
    def least(self) -> float:
        """f(x*) by Newton's method; 0, which bounds it from below, if f is not convex."""
        return float(self.value(self.optimum())) if self.mu else 0.0

    def optimum(self) -> Tensor:
        """x* of the convex problem, to machine precision."""
        x = torch.zeros(self.dimension, dtype=torch.float64)
        for _ in range(50):
            slope = torch.func.grad(self.value)(x)
            step = torch.linalg.solve(torch.func.hessian(self.value)(x), slope)
            x = x - step
            if step.norm() < 1e-13 * (1 + x.norm()):
                break
        return x

    def value(self, x: Tensor) -> Tensor:
        """f(x)."""
        return self._over(x, self.features, self.signs)

    def sample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """f over a random batch of the examples, drawn with replacement."""
        chosen = torch.randint(len(self.signs), (self.batch,), generator=generator)
        return self._over(x, self.features[chosen], self.signs[chosen])

    def _over(self, x: Tensor, features: Tensor, signs: Tensor) -> Tensor:
        loss = F.softplus(-(x @ features.T) * signs).mean(-1)
        square = x.square()
        return loss + 0.5 * self.ridge * square.sum(-1) + self.bumps * (square / (1 + square)).sum(-1)
