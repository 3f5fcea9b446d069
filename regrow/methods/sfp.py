"""Soft filter pruning (He et al. 2018): every epoch the smallest filters of each layer are set to zero, and may regrow.

Defaults are the authors': before training and after every epoch (`every=len(loader)`) the floor(C·s) filters of least
l2 norm of each layer are set to zero; gradients and momentum are left alone. A number for `sparsity` is the constant
ratio of the authors (their `rate` is the fraction that is kept); a `Cubic` ramp is that of the comparison in the DPF
paper. The model is sparse only directly after an update, so evaluate it then, at the end of an epoch. Different from
the authors' code: shortcuts are pruned like every other convolution unless `targets` leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.budget import prune_count
from regrow.core.options import EPOCH, MethodInfo, TargetOptions
from regrow.core.pruner import Pruner
from regrow.core.schedule import Sparsity
from regrow.core.units import Criterion
from regrow.core.weights import Memory


class SFP(Pruner):
    """Sets the smallest filters of `model` to zero every `every` steps; `len(loader)` is once per epoch."""

    info = MethodInfo(
        paper="He et al. 2018",
        when="every `every` steps, to the end",
        score="l2 norm of filters",
        cost="one norm per filter, one selection per layer",
        budget="uniform, rounded down",
    )
    memory = Memory.SOFT
    prunes_filters = True
    every_divides_epoch = True
    period = EPOCH

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Sparsity,
        every: int | Literal["auto"] = "auto",
        criterion: Criterion = "l2",
        **options: Unpack[TargetOptions],
    ) -> None:
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            every=every,
            unit="filter",
            criterion=criterion,
            scope="layer",
            **options,
        )

    def next_masks(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Keep the filters of largest norm in each layer."""
        levels = self.by_group(self.schedule(t))
        of_layer = {name: level for names, level in self.parts(levels) for name in names}
        keeps = {}  # compute all first, so that NaN in one layer changes none
        for name, weight in self.weights.items():
            norms = self.units.scores(self.targets[name], weight)
            [filters] = self.shards.sizes([norms])
            count = int(filters * of_layer[name] + 1e-9)  # 0.29 x 100 filters are 29, not 28.999…
            keeps[name] = prune_count(name, norms, count, self.shards)
        self.levels = levels
        for name, keep in keeps.items():
            yield name, self.units.mask(self.targets[name], self.weights[name], keep, None)
