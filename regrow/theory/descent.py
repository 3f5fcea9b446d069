"""Runs the methods themselves, such as `regrow.DPF` on `torch.optim.SGD`, and records what the theorems speak of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from regrow.core.pruner import Pruner
from regrow.methods.dense import Dense
from regrow.methods.dpf import DPF
from regrow.methods.oneshot import OneShot
from regrow.theory.problems import Problem

Rate = Callable[[int], float]
Method = Callable[[nn.Module, Optimizer], Pruner]

_CHUNK = 512  # points evaluated at once, to bound memory


@dataclass(frozen=True)
class Trajectory:
    """The iterates x_t and x̂_t for t = 0..T in rows, and the squared length of the stochastic gradient at each x̂_t."""

    dense: Tensor
    pruned: Tensor
    gradients: Tensor

    @property
    def errors(self) -> Tensor:
        """‖e_t‖² = ‖x̂_t − x_t‖² = δ_t‖x_t‖² (Eq. 2)."""
        return (self.pruned - self.dense).square().sum(1)


class Point(nn.Module):
    """A point of R^d as a model, so that an optimizer and a pruner can move it."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x.clone())


def descend(problem: Problem, start: Tensor, method: Method, *, rate: Rate, steps: int, seed: int = 0) -> Trajectory:
    """Follow `method` from `start` for T = `steps` steps with learning rate γ_t = `rate(t)`."""
    generator = torch.Generator().manual_seed(seed)
    model = Point(start)
    optimizer = SGD(model.parameters(), lr=1.0)
    pruner = method(model, optimizer)
    dense, pruned, gradients = [], [], []
    for t in range(steps + 1):
        dense.append(pruner.weights["x"].detach().clone())
        pruned.append(model.x.detach().clone())
        optimizer.param_groups[0]["lr"] = rate(t)
        optimizer.zero_grad()
        problem.sample(model.x, generator).backward()
        assert model.x.grad is not None
        gradients.append(model.x.grad.square().sum())
        optimizer.step()
    pruner.detach()
    return Trajectory(torch.stack(dense), torch.stack(pruned), torch.stack(gradients))


def dpf(sparsity: float, *, every: int = 1) -> Method:
    """DPF at a constant sparsity, with a new mask every `every` steps."""
    return lambda model, optimizer: DPF(model, optimizer, sparsity=sparsity, every=every, targets="x")


def sgd() -> Method:
    """Plain SGD: nothing is pruned."""
    return lambda model, optimizer: Dense(model, optimizer, targets="x")


def one_shot(x: Tensor, sparsity: float) -> Tensor:
    """x̂: what one-shot pruning makes of x."""
    model = Point(x)
    OneShot(model, SGD(model.parameters(), lr=1.0), sparsity=sparsity, targets="x").detach()
    return model.x.detach()


def values(problem: Problem, points: Tensor) -> Tensor:
    """f at each of many points."""
    return torch.cat([problem.value(chunk) for chunk in points.split(_CHUNK)])


def slopes(problem: Problem, points: Tensor) -> Tensor:
    """‖∇f‖² at each of many points."""
    found = []
    for chunk in points.split(_CHUNK):
        at = chunk.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(problem.value(at).sum(), at)
        found.append(gradient.square().sum(1))
    return torch.cat(found)
