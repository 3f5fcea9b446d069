"""GraNet (Liu et al. 2021): gradual pruning in which connections regenerate after every pruning step.

Every `every` steps the smallest weights over all layers are pruned to the sparsity of a cubic ramp. Then a fraction of
each layer's connections (the smallest) is dropped, and as many grow where the gradient is largest.

Defaults are those of the authors for CIFAR-10: a random first mask of 50 % with ERK densities (`initial_sparsity=0`
starts dense), a ramp over the first half of training (ImageNet: `ramp_end=0.3`), an update every 1,000 steps (ImageNet:
4,000), and a fraction that decays from 0.5 to 0.005 with a cosine. New connections start with weight and momentum zero;
a connection that is dropped and grows back in the same update keeps both, as in the authors' code. Different from the
authors' code: counts are exact, there is always an update at the end of the ramp and none at the end of training, and
the last linear layer stays dense.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_fraction
from regrow.core.budget import Budget
from regrow.core.options import MethodInfo, check_constant, required_total
from regrow.core.schedule import Cubic, Level, Sparsity, check_sparsity, ramped
from regrow.methods.drop_and_grow import DropFraction, DropFractionOptions, annealed


class GraNet(DropFraction):
    """Prunes `model` gradually and regrows by the gradient; `total_steps` is the length of training.

    `scope` sets the densities of the random first mask; after that, one threshold holds for all layers.
    """

    has_own_schedule = True
    info = MethodInfo(
        paper="Liu et al. 2021",
        when="every `every` steps, not at the end",
        score="drop: magnitude; grow: dense gradient",
        cost="one selection over n and two per layer",
        budget="Erdős–Rényi kernel at first, then by magnitude",
    )
    scope = "erk"
    period = 1000
    grows_by_gradient = True
    drop_fraction = 0.5

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Level,
        initial_sparsity: float = 0.5,
        ramp_end: float = 0.5,
        **options: Unpack[DropFractionOptions],
    ) -> None:
        total = required_total(self, options.get("total_steps"))
        check_constant(self, sparsity, "has its own ramp")
        check_sparsity(initial_sparsity, "initial_sparsity")
        least = min(sparsity.values()) if isinstance(sparsity, Mapping) else sparsity
        if initial_sparsity > least:
            raise ValueError(f"initial_sparsity must be at most the sparsity {least:g}, got {initial_sparsity:g}")
        self._end = max(round(check_fraction("ramp_end", ramp_end) * total), 1)
        self._initial = initial_sparsity
        super().__init__(model, optimizer, sparsity=sparsity, **options)

    def ramp(self, sparsity: Level) -> Sparsity:
        """Return the cubic ramp from `initial_sparsity` to `sparsity`."""
        return ramped(sparsity, lambda final: Cubic(final, end=self._end, initial=self._initial))

    def updates_at(self, t: int) -> bool:
        """Return whether connections are pruned or moved after step `t`."""
        return t == self._end or super().updates_at(t)

    def drop_and_grow(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Prune to the ramp's sparsity, then drop a fraction of each layer and grow as many by |gradient|."""
        fraction = annealed(self.drop_fraction, t, self.total_steps)
        levels = self.by_group(self.schedule(t))
        pruned = Budget("global").keep_top(self.weights, self.parts(levels), shards=self.shards, among=self.masks)
        left, masks = dict(pruned), {}
        for name, mask in left.items():
            active = self.count(mask)
            masks[name] = self.move_by_gradient(name, mask, active=active, moved=math.ceil(fraction * active))
        self.levels = levels
        for name, mask in masks.items():  # after the last selection: NaN in a layer changes none
            grown = mask & ~left[name]
            self.weights[name].masked_fill_(grown, 0)
            self._reset_momentum(name, grown)
            yield name, mask
