"""Dynamic network surgery (Guo et al. 2016): prune and splice with two thresholds, so that masks do not flicker.

As in DPF, the gradient at the pruned weights updates the dense ones. A weight is pruned when its magnitude falls below
a = 0.9 τ, and restored ("spliced") only when it rises above b = 1.1 τ; in between it stays as it is. Masks are updated
with the authors' probability 1 / (1 + γt), γ = 1e-4. Different from the authors' code:

* `sparsity` is given, and τ is computed for every mask so that exactly the requested number of weights is kept: an
  active weight is kept if |w| / 0.9 > τ, a pruned one is restored if |w| / 1.1 > τ, so the largest of these quotients
  are kept. The authors fix τ for each layer at mean + c·std of its initial magnitudes, and choose c by hand.
* All layers share τ (`scope="layer"` gives each its own) and one random draw per step; the authors draw for each layer.
* Biases stay dense, masks are updated until the end, and a ramp is possible; the authors prune a trained network at
  once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_amount, check_fraction
from regrow.core.bits import uniform
from regrow.core.options import MethodInfo, PrunerOptions
from regrow.core.pruner import Pruner
from regrow.core.schedule import Sparsity
from regrow.core.weights import Memory


class DNS(Pruner):
    """Keeps `model` pruned while `optimizer` trains the dense weights; near the threshold, masks do not change.

    `margin` is half the relative distance between the two thresholds, `gamma` how fast mask updates become rare.
    """

    info = MethodInfo(
        paper="Guo et al. 2016",
        when="every `every` steps with probability 1/(1 + γt)",
        score="magnitude of the dense weights, against two thresholds",
        cost="one selection over n",
    )
    memory = Memory.KEEP
    period = 1
    resume_options = (*Pruner.resume_options, "margin", "gamma", "seed")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Sparsity,
        every: int | Literal["auto"] = "auto",
        margin: float = 0.1,
        gamma: float = 1e-4,
        seed: int = 0,
        **options: Unpack[PrunerOptions],
    ) -> None:
        self.margin, self.gamma = check_fraction("margin", margin), check_amount("gamma", gamma, zero=True)
        if margin == 1:
            raise ValueError("margin must be below 1: with 1 nothing is ever pruned")
        self.seed = seed
        super().__init__(model, optimizer, sparsity=sparsity, every=every, **options)

    def updates_at(self, t: int) -> bool:
        """Return whether the masks change after step `t`: a random draw, equal on all ranks and in resumed runs."""
        if t % self.every:
            return False
        drawn = uniform(torch.empty(1), seed=self.seed, layer="surgery", step=t).item()
        return drawn < 1 / (1 + self.gamma * t)

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep active weights above (1 − margin) τ and splice pruned ones above (1 + margin) τ."""
        scores = {}
        for name, weight in self.weights.items():
            mask = self.masks[name].to(weight.device)
            scores[name] = torch.where(mask, weight / (1 - self.margin), weight / (1 + self.margin))
        return self.keep_top(scores, self.schedule(t))
