"""A mask that is given and stays: fine-tuning with another optimizer, retraining a found mask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.masks import Masks
from regrow.core.modules import clean_name
from regrow.methods.about import About
from regrow.methods.pruner import Pruner


class Fixed(Pruner):
    """Keeps exactly the weights that `masks` names (for example another pruner's `masks`) and no others."""

    about = About(
        paper="",
        when="once, when attached",
        score="given masks",
        cost="nothing",
    )

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        masks: Mapping[str, Tensor],
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._given = Masks({clean_name(name): mask for name, mask in masks.items()}).clone()
        super().__init__(model, optimizer, sparsity=self._given.sparsity, targets=list(self._given), group=group)

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return the given masks."""
        for name, mask in self._given.items():
            if name not in self.targets:
                raise ValueError(f"a mask is named like its parameter, such as {next(iter(self.targets))}; got {name}")
            if self.targets[name].part(mask).shape != self.targets[name].held.shape:
                shape = tuple(self.targets[name].param.shape)
                raise ValueError(f"the mask of {name} has shape {tuple(mask.shape)}, the weight has {shape}")
        parts = {name: self.targets[name].part(mask) for name, mask in self._given.items()}
        self.requested = 1 - sum(self.shards.counts(parts.values())) / sum(self.shards.sizes(parts.values()))
        return parts.items()

    def due(self, t: int) -> bool:
        """Set the masks once."""
        return t == 0
