"""Run the methods on small problems and record the theorems' quantities; the two-dimensional picture (Figure 2)."""

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
from reproduce.theory.problems import Problem

Rate = Callable[[int], float]
Method = Callable[[nn.Module, Optimizer], Pruner]

_CHUNK = 512  # points evaluated at once, to limit memory


@dataclass(frozen=True)
class Trajectory:
    """The iterates x_t and x̂_t for t = 0..T as rows, and the squared norm of the stochastic gradient at each x̂_t."""

    dense: Tensor
    pruned: Tensor
    gradients: Tensor

    @property
    def errors(self) -> Tensor:
        """‖e_t‖² = ‖x̂_t − x_t‖² = δ_t‖x_t‖² (Eq. 2)."""
        return (self.pruned - self.dense).square().sum(1)


class Point(nn.Module):
    """A point of R^d as a model, for an optimizer and a pruner."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x.clone())


def descend(problem: Problem, start: Tensor, method: Method, *, rate: Rate, steps: int, seed: int = 0) -> Trajectory:
    """Run `method` from `start` for T = `steps` steps with learning rate γ_t = `rate(t)`."""
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
    """Return DPF at a constant sparsity, with a mask update every `every` steps."""
    return lambda model, optimizer: DPF(model, optimizer, sparsity=sparsity, every=every, targets="x")


def sgd() -> Method:
    """Return plain SGD, without pruning."""
    return lambda model, optimizer: Dense(model, optimizer, targets="x")


def one_shot(x: Tensor, sparsity: float) -> Tensor:
    """Return x̂, the one-shot pruning of x."""
    model = Point(x)
    OneShot(model, SGD(model.parameters(), lr=1.0), sparsity=sparsity, targets="x").detach()
    return model.x.detach()


def values(problem: Problem, points: Tensor) -> Tensor:
    """Return f at each of many points."""
    return torch.cat([problem.value(chunk) for chunk in points.split(_CHUNK)])


def slopes(problem: Problem, points: Tensor) -> Tensor:
    """Return ‖∇f‖² at each of many points."""
    found = []
    for chunk in points.split(_CHUNK):
        at = chunk.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(problem.value(at).sum(), at)
        found.append(gradient.square().sum(1))
    return torch.cat(found)


START = (0.8, 0.6)
STEPS = 80
RATE = 0.1


@dataclass(frozen=True)
class Valleys:
    """Two round valleys, depth · (1 − r²)³ for r < 1, in a wide bowl around the sparse one.

    One valley has a dense bottom and is deeper; the bottom of the other is sparse. SGD ends in the deep one, and
    pruning its result lands on a slope. DPF takes gradients at the pruned points, follows them along the axes into the
    sparse valley and stays there, because the gradient of the other weight vanishes (Figure 2).
    """

    bottoms: tuple[tuple[float, float], ...] = ((1.3, 1.1), (0.0, 1.8))
    depths: tuple[float, ...] = (1.0, 0.85)
    reaches: tuple[float, ...] = (1.45, 1.3)
    bowl: float = 0.02
    dimension: int = 2
    mu: float = 0.0

    @property
    def smoothness(self) -> float:
        """Bound of the curvature: a valley of depth a and reach s has at most 6a/s², at its bottom."""
        return 2 * self.bowl + sum(6 * a / s**2 for a, s in zip(self.depths, self.reaches, strict=True))

    @property
    def least(self) -> float:
        """A lower bound."""
        return -sum(self.depths)

    def value(self, x: Tensor) -> Tensor:
        """f(x)."""
        total = self.bowl * (x - torch.tensor(self.bottoms[1], dtype=x.dtype)).square().sum(-1)
        for bottom, depth, reach in zip(self.bottoms, self.depths, self.reaches, strict=True):
            away = (x - torch.tensor(bottom, dtype=x.dtype)).square().sum(-1) / reach**2
            total = total - depth * (1 - away).clamp(min=0) ** 3
        return total

    def sample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return f itself; the picture has no noise."""
        return self.value(x)


@dataclass(frozen=True)
class Picture:
    """Two descents from the same point, and the sparse model that each ends with."""

    surface: Valleys
    dense: Trajectory
    feedback: Trajectory
    one_shot: Tensor

    @property
    def delivered(self) -> dict[str, float]:
        """Value of f at the sparse model that each method ends with."""
        points = torch.stack([self.one_shot, self.feedback.pruned[-1]])
        found = values(self.surface, points).tolist()
        return {"one-shot": found[0], "DPF": found[1]}


def draw() -> Picture:
    """Run SGD followed by one-shot pruning, and DPF; both keep one weight of two."""
    surface, start = Valleys(), torch.tensor(START, dtype=torch.float64)
    dense = descend(surface, start, sgd(), rate=lambda t: RATE, steps=STEPS)
    feedback = descend(surface, start, dpf(0.5), rate=lambda t: RATE, steps=STEPS)
    return Picture(surface, dense, feedback, one_shot(dense.dense[-1], 0.5))
