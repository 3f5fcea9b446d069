"""Static random sparsity: a random mask that never changes, the baseline of sparse training.

Densities are Erdos-Renyi-kernel by default, as in the study of random pruning by Liu et al. 2022. For the same targets,
`scope` and `seed`, RigL, SET and the other drop-and-grow methods start from the same masks, so comparing the runs shows
the effect of moving connections. Counts are exact; those of a Bernoulli mask are exact only on average.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.bits import uniform
from regrow.core.budget import Scope
from regrow.core.options import MethodInfo, TargetOptions, check_constant
from regrow.core.pruner import Pruner
from regrow.core.schedule import Level


class Static(Pruner):
    """Prunes `model` at random, once, before it is trained; `seed` decides which weights stay."""

    info = MethodInfo(
        paper="Liu et al. 2022",
        when="once, before training",
        score="random",
        cost="one draw and one selection per layer, once",
    )
    takes_schedule = False
    resume_options = (*Pruner.resume_options, "seed")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Level,
        scope: Scope = "erk",
        seed: int = 0,
        **options: Unpack[TargetOptions],
    ) -> None:
        self.seed = seed
        super().__init__(model, optimizer, sparsity=check_constant(self, sparsity), scope=scope, **options)

    def updates_at(self, t: int) -> bool:
        """Return whether this is the start."""
        return t == 0

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the weights with the largest random numbers."""
        draws = {
            name: uniform(self.weights[name], seed=self.seed, layer=f"{name} place", step=0, offset=target.offset)
            for name, target in self.targets.items()
        }
        return self.keep_top(draws, self.schedule(t))
