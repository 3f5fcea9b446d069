"""Soft filter pruning (He et al. 2018): the weakest filters of every layer are zeroed each epoch, free to grow back.

Defaults are the authors': before training and after every epoch (`every=len(loader)`) the floor(C·s) filters of least
l2 norm of each layer are set to zero; gradients and momentum are left alone. A number for `sparsity` is the constant
ratio of the authors (whose `rate` is what is kept), a `Cubic` ramp that of the paper's comparison. The model is sparse
when an update was just made, as at the end of an epoch, and that is when its accuracy counts. Different from the
authors' code: shortcuts are pruned like every other convolution unless `targets` leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.choices.budget import prune_named
from regrow.choices.score import Criterion
from regrow.core.schedule import Schedule
from regrow.core.weights import Memory
from regrow.host.targets import TargetSpec
from regrow.methods.about import About
from regrow.methods.options import EPOCH, needed_period
from regrow.methods.pruner import Pruner


class SFP(Pruner):
    """Zeroes the weakest filters of `model` every `every` steps: pass `len(loader)` for once per epoch."""

    about = About(
        paper="He et al. 2018",
        when="every `every` steps, to the end",
        score="l2 norm of filters",
        cost="one norm per filter, one selection per layer",
        budget="uniform, rounded down",
    )
    memory = Memory.SOFT
    period = EPOCH

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float | Schedule,
        every: int | Literal["auto"] | None = None,
        criterion: Criterion = "l2",
        targets: TargetSpec = None,
        include_last: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        options: dict[str, Any] = {"targets": targets, "include_last": include_last, "group": group}
        chosen: dict[str, Any] = {"unit": "filter", "criterion": criterion, "scope": "layer"}
        super().__init__(model, optimizer, sparsity=sparsity, every=needed_period(self, every), **chosen, **options)

    def next_masks(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Keep the filters of largest norm in each layer."""
        sparsity = self.schedule(t)
        keeps = {}  # all before the first is used: NaN in a layer changes none
        for name, weight in self.weights.items():
            norms = self.units.scores(self.targets[name], weight)
            [filters] = self.shards.sizes([norms])
            count = int(filters * sparsity + 1e-9)  # 0.29 x 100 filters are 29, not 28.999…
            keeps[name] = prune_named(name, norms, count, self.shards)
        self.requested = sparsity
        for name, keep in keeps.items():
            yield name, self.units.mask(self.targets[name], self.weights[name], keep, None)
