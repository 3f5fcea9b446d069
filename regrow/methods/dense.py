"""Nothing is pruned: the baseline, with the same hooks, names and statistics as the methods beside it."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from regrow.core.weights import Memory
from regrow.host.targets import TargetSpec
from regrow.methods.about import About
from regrow.methods.pruner import Pruner


class Dense(Pruner):
    """Leaves `model` as it is; what it would count as pruned is chosen as for every method."""

    about = About(
        paper="",
        when="never",
        score="none",
        cost="nothing",
    )
    memory = Memory.SOFT  # nothing is masked, so there is nothing to do after a step

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        targets: TargetSpec = None,
        include_last: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(model, optimizer, sparsity=0.0, targets=targets, include_last=include_last, group=group)

    def due(self, t: int) -> bool:
        """Never."""
        return False
