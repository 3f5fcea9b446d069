"""SET, sparse evolutionary training (Mocanu et al. 2018): drop the weights nearest to zero, grow at random.

Defaults are the authors': Erdos-Renyi densities, and a fraction ζ = 0.3 (`drop_fraction`) of the connections of each
layer, once per epoch (pass `every=len(loader)`) except after the last one. Different from the authors' code:

* `sparsity` replaces their ε, and is exact.
* New weights start at zero instead of random values, and only their momentum is reset (the authors build a new
  optimizer every epoch).
* Connections grow only where there was none before the update; the authors draw from all empty places, which include
  those that were just dropped. A layer with fewer free places than ζ times its connections moves only as many
  connections as it has places.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regrow.core.options import MethodInfo
from regrow.methods.drop_and_grow import DropFraction


class SET(DropFraction):
    """Moves the smallest weights of `model` to random places; `total_steps` is the length of training."""

    info = MethodInfo(
        paper="Mocanu et al. 2018",
        when="every `every` steps, not at the end",
        score="drop: nearest to zero, by sign; grow: random",
        cost="three selections and one draw per layer",
    )
    scope = "er"
    resets_momentum = True

    def drop_and_grow(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Drop the smallest positive and the largest negative weights, grow as many at random places that were free."""
        for name, mask in self.masks.items():
            weight, free = self.weights[name], self.count(~mask)
            fraction = min(self.drop_fraction, free / max(self.targets[name].param.numel() - free, 1))
            kept, moved = torch.zeros_like(mask), 0
            for side in (mask & ~(weight < 0), mask & (weight < 0)):  # NaN is in the first, where the selection raises
                active = self.count(side)
                kept |= self.keep_largest(name, weight, side, active - int(fraction * active))
                moved += int(fraction * active)
            yield name, kept | self.keep_largest(name, self.draw(name, t), ~mask, moved)
