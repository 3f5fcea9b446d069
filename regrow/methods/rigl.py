"""RigL (Evci et al. 2020): drop the smallest weights, grow where the gradient of the dense network is largest.

Defaults are the authors': ERK densities, an update every 100 steps until 75 % of training, of a fraction of each
layer's connections that decays from 0.3 to zero with a cosine; new connections start with weight and momentum zero.
Different from the authors' code: all targets are sparse (they keep some layers dense by name). The update takes place
after the optimizer's step instead of replacing it, and its gradient is that of the step's own batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from regrow.core.options import MethodInfo
from regrow.methods.drop_and_grow import DropFraction


class RigL(DropFraction):
    """Moves connections of `model` to where the gradient is largest; `total_steps` is the length of training."""

    info = MethodInfo(
        paper="Evci et al. 2020",
        when="every `every` steps, until 75 % of `total_steps`",
        score="drop: magnitude; grow: dense gradient",
        cost="two selections per layer",
    )
    scope = "erk"
    period = 100
    until = 0.75
    resets_momentum = True
    grows_by_gradient = True

    def drop_and_grow(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Drop the smallest weights of each layer, grow as many by |gradient| (dropped ones may grow back)."""
        fraction = self.drop_fraction / 2 * (1 + math.cos(math.pi * t / (self.until * self.total_steps)))
        for name, mask in self.masks.items():
            active = self.count(mask)
            yield name, self.move_by_gradient(name, mask, active=active, moved=int(fraction * active))
