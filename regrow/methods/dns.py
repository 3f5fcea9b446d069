"""Dynamic network surgery (Guo et al. 2016): prune and splice with two thresholds, so that masks do not flicker.

As in DPF, the gradient at the pruned weights updates the dense ones. A weight is pruned when its magnitude falls below
a = 0.9 τ, and spliced back only when it rises above b = 1.1 τ; in between it stays on its side. The authors fix τ for
each layer, mean + c·std of the magnitudes of its first weights, with c chosen by hand. Here `sparsity` is given
instead, and τ is found for every mask so that exactly the requested number of weights survives: an active weight
survives if |w| / 0.9 > τ, a pruned one comes back if |w| / 1.1 > τ, so the largest of these quotients stay. A mask is
updated with the authors' probability 1 / (1 + γt), γ = 1e-4, by one draw per step for all layers (theirs: one draw for
each). Other differences: all layers share τ (`scope="layer"` gives each its own), biases stay dense, the updates go on
to the end, and a ramp is possible, where the authors prune a trained network at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_amount, check_fraction
from regrow.core.options import MethodInfo, PrunerOptions
from regrow.core.pruner import Pruner
from regrow.core.random import uniform
from regrow.core.schedule import Sparsity
from regrow.core.weights import Memory


class DNS(Pruner):
    """Keeps `model` pruned while `optimizer` trains the dense weights; those near the threshold stay on their side.

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
        """Return whether the masks are updated after step `t`, drawn alike on every process and in every rerun."""
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
