"""The theorems' bounds, with the constants of their proofs, and the measured values.

Expectations over the choice of the iterate are computed exactly, with the theorem's probabilities p_t; expectations
over the stochastic gradients are means over runs. G² is the largest squared gradient norm in any run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reproduce.theory.descent import Trajectory, slopes, values
from reproduce.theory.problems import Problem


@dataclass(frozen=True)
class BoundComparison:
    """Measured value and bound, for each number of steps in `steps`.

    The bound has two parts: `vanishing` goes to zero with the number of steps; `neighborhood` depends on the pruning
    errors δ_t‖x_t‖² and goes to zero only if they do.
    """

    steps: Tensor
    measured: Tensor
    vanishing: Tensor
    neighborhood: Tensor

    @property
    def bound(self) -> Tensor:
        """The right-hand side of the theorem."""
        return self.vanishing + self.neighborhood

    @property
    def holds(self) -> bool:
        """Whether every measured value is within its bound."""
        return bool((self.measured <= self.bound).all())

    @property
    def tightness(self) -> float:
        """The largest ratio of measured value to bound."""
        return float((self.measured / self.bound).max())


def strongly_convex(problem: Problem, runs: Sequence[Trajectory]) -> BoundComparison:
    """Theorem 4.1 for T = 0, 1, …: E f(û) − f* ≤ 4(T+1)G²/(μΛ_T) + 3L/Λ_T Σ λ_t‖e_t‖², λ_t = t+1 (Appendix, proof).

    û is x̂_t with probability p_t = λ_t/Λ_T = 2(t+1)/((T+1)(T+2)); rates must have been γ_t = 4/(μ(t+2)).
    """
    _needs_convexity(problem)
    gap = _mean([values(problem, run.pruned) for run in runs]) - problem.least
    steps = torch.arange(len(gap), dtype=torch.float64)
    return BoundComparison(
        steps,
        _weighted(gap),
        8 * _largest_gradient(runs) / (problem.mu * (steps + 2)),
        3 * problem.smoothness * _weighted(_mean([run.errors for run in runs])),
    )


def dense_iterate(problem: Problem, runs: Sequence[Trajectory]) -> BoundComparison:
    """The dense model u, chosen like û: E f(u) − f* ≤ 2 E[f(û) − f*] + L E[δ_t‖x_t‖²], and Theorem 4.1 for f(û)."""
    promised = strongly_convex(problem, runs)
    gap = _mean([values(problem, run.dense) for run in runs]) - problem.least
    extra = problem.smoothness * _weighted(_mean([run.errors for run in runs]))
    return BoundComparison(promised.steps, _weighted(gap), 2 * promised.vanishing, 2 * promised.neighborhood + extra)


def one_shot(problem: Problem, runs: Sequence[Trajectory], steps: Tensor, pruned: Sequence[Tensor]) -> BoundComparison:
    """Pruning only the last iterate: E f(x̂_T) − f* ≤ 2 E[f(x_T) − f*] + L E[δ_T‖x_T‖²] ≤ 16LG²/(μ²(T+1)) + the same.

    `runs` are plain SGD; `pruned` has, for each, x̂_T for every T in `steps`, all of them at least 1. The constant comes
    from the proof of Theorem 4.1: without pruning errors its telescoped sum leaves E‖x_T − x*‖² ≤ 16G²/(μ²(T+1)), and
    f(x_T) − f* ≤ L/2 ‖x_T − x*‖² by smoothness.
    """
    _needs_convexity(problem)
    gap = _mean([values(problem, points) for points in pruned]) - problem.least
    errors = _mean([(points - run.dense[steps]).square().sum(1) for points, run in zip(pruned, runs, strict=True)])
    scale = 16 * problem.smoothness / problem.mu**2
    vanishing = scale * _largest_gradient(runs)[steps - 1] / (steps + 1)
    return BoundComparison(steps.double(), gap, vanishing, problem.smoothness * errors)


def rounding(problem: Problem, dense: Tensor, pruned: Tensor) -> BoundComparison:
    """The inequality behind one-shot's bound, at any points: f(x̂) − f* ≤ 2(f(x) − f*) + L‖x̂ − x‖² (Appendix)."""
    errors = (pruned - dense).square().sum(1)
    return BoundComparison(
        torch.arange(len(dense), dtype=torch.float64),
        values(problem, pruned) - problem.least,
        2 * (values(problem, dense) - problem.least),
        problem.smoothness * errors,
    )


def non_convex(problem: Problem, runs: Sequence[Trajectory], *, rate: float) -> BoundComparison:
    """Theorem 4.2 for one T: E‖∇f(û)‖² ≤ 2(f(x_0)−f*)/(γ(T+1)) + LγG² + L²/(T+1) Σ‖e_t‖² (Appendix, proof).

    û is any of the T+1 iterates with equal probability; `rate` is the constant γ they were made with.
    """
    slope = _mean([slopes(problem, run.pruned) for run in runs]).mean()
    count = len(runs[0].pruned)
    start = float(values(problem, runs[0].dense[:1])) - problem.least
    squared = float(_largest_gradient(runs)[-1])
    smoothness = problem.smoothness
    return BoundComparison(
        torch.tensor([count - 1.0], dtype=torch.float64),
        slope[None],
        torch.tensor([2 * start / (rate * count) + smoothness * rate * squared], dtype=torch.float64),
        smoothness**2 * _mean([run.errors for run in runs]).mean()[None],
    )


def slope(steps: Tensor, quantity: Tensor) -> float:
    """Return the power of T with which a quantity falls, by a linear fit of its logarithm."""
    x, y = steps.log(), quantity.log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def _weighted(quantity: Tensor) -> Tensor:
    """Σ_{t≤T} p_t q_t for every T."""
    weights = torch.arange(1, len(quantity) + 1, dtype=torch.float64)
    return (weights * quantity).cumsum(0) / weights.cumsum(0)


def _mean(quantities: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(quantities)).mean(0)


def _largest_gradient(runs: Sequence[Trajectory]) -> Tensor:
    """G² up to every T."""
    return torch.stack([run.gradients for run in runs]).amax(0).cummax(0).values


def _needs_convexity(problem: Problem) -> None:
    if problem.mu <= 0:
        raise ValueError(f"the theorem needs a strongly convex objective (μ > 0), got μ = {problem.mu}")
