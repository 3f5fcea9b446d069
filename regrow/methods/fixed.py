"""Fixed masks, for fine-tuning with another optimizer or for training a mask from scratch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.modules import clean_name
from regrow.core.options import MethodInfo
from regrow.core.pruner import Pruner
from regrow.core.state import Masks


class Fixed(Pruner):
    """Prunes all weights that are not in `masks`, for example the `masks` of another pruner."""

    info = MethodInfo(paper="", when="once, when attached", score="given masks", cost="nothing")
    takes_sparsity = False
    takes_masks = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        masks: Mapping[str, Tensor],
        *,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self._given = Masks({clean_name(name): mask for name, mask in masks.items()}).clone()
        super().__init__(
            model, optimizer, sparsity=self._given.sparsity, targets=list(self._given), process_group=process_group
        )

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return the given masks."""
        for name, mask in self._given.items():
            if name not in self.targets:
                raise ValueError(f"masks need names of parameters, such as {next(iter(self.targets))}; got {name}")
            if self.targets[name].part(mask).shape != self.targets[name].local.shape:
                shape = tuple(self.targets[name].param.shape)
                raise ValueError(f"the mask of {name} has shape {tuple(mask.shape)}, the weight has {shape}")
        parts = {name: self.targets[name].part(mask) for name, mask in self._given.items()}
        pruned = 1 - sum(self.shards.counts(parts.values())) / sum(self.shards.sizes(parts.values()))
        self.levels = dict.fromkeys(self.groups, pruned)
        return parts.items()

    def updates_at(self, t: int) -> bool:
        """Return whether this is the start."""
        return t == 0
