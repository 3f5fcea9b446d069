"""The two-dimensional picture: one weight of two may stay, and pruning while training finds a better one (Figure 2).

The surface has a deep valley whose bottom is dense and a second valley whose bottom is sparse. Plain descent ends in
the deep one, and pruning what it found lands on a slope. DPF takes its gradients at the pruned points, follows them on
the axes into the sparse valley, and stays there, because nothing pulls the other weight any more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.theory.descent import Trajectory, descend, dpf, one_shot, sgd, values

START = (0.8, 0.6)
STEPS = 80
RATE = 0.1


@dataclass(frozen=True)
class Valleys:
    """Two round valleys of limited reach, depth · (1 − r²)³ for r < 1, in a wide bowl around the sparse one."""

    bottoms: tuple[tuple[float, float], ...] = ((1.3, 1.1), (0.0, 1.8))
    depths: tuple[float, ...] = (1.0, 0.85)
    reaches: tuple[float, ...] = (1.45, 1.3)
    bowl: float = 0.02
    dimension: int = 2
    mu: float = 0.0

    @property
    def smoothness(self) -> float:
        """A valley of depth a and reach s bends by at most 6a/s², at its bottom."""
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
        """f itself: the picture has no noise."""
        return self.value(x)


@dataclass(frozen=True)
class Picture:
    """Two descents from the same point, and the sparse model that each of them delivers."""

    surface: Valleys
    dense: Trajectory
    feedback: Trajectory
    one_shot: Tensor

    @property
    def delivered(self) -> dict[str, float]:
        """f of the sparse model that each method ends with."""
        points = torch.stack([self.one_shot, self.feedback.pruned[-1]])
        found = values(self.surface, points).tolist()
        return {"one-shot": found[0], "DPF": found[1]}


def draw() -> Picture:
    """Runs SGD followed by one-shot pruning, and DPF, both keeping one weight of two."""
    surface, start = Valleys(), torch.tensor(START, dtype=torch.float64)
    dense = descend(surface, start, sgd(), rate=lambda t: RATE, steps=STEPS)
    feedback = descend(surface, start, dpf(0.5), rate=lambda t: RATE, steps=STEPS)
    return Picture(surface, dense, feedback, one_shot(dense.dense[-1], 0.5))
