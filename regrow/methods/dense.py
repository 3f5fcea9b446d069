"""The dense baseline: nothing is pruned, with the same hooks, names and statistics as the other methods."""

from __future__ import annotations

from typing import Unpack

from torch import nn
from torch.optim import Optimizer

from regrow.core.options import MethodInfo, TargetOptions
from regrow.core.pruner import Pruner
from regrow.core.weights import Memory


class Dense(Pruner):
    """Prunes nothing; targets are chosen as in every method."""

    info = MethodInfo(paper="", when="never", score="none", cost="nothing")
    memory = Memory.SOFT  # nothing is masked, so there is nothing to do after a step
    takes_sparsity = False
    ends_dense = True
    ignores_options = True

    def __init__(self, model: nn.Module, optimizer: Optimizer, **options: Unpack[TargetOptions]) -> None:
        super().__init__(model, optimizer, sparsity=0.0, **options)

    def updates_at(self, t: int) -> bool:
        """Return False: there are no masks."""
        return False
