"""SET, sparse evolutionary training (Mocanu et al. 2018): drop what is nearest to zero, grow at random.

Defaults are the authors': Erdos-Renyi densities and a share ζ = 0.3 of each layer, once per epoch (`every=len(loader)`)
but not after the last one. Different from the authors' code: `sparsity` is given instead of their ε and met exactly,
new weights start at zero instead of at random values, and only their momentum starts anew (the authors rebuild the
optimizer with the network every epoch). Nothing grows where it was dropped in the same update; the authors draw among
all free places. In a layer with fewer free places than ζ times its connections, no more move than there are places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_share
from regrow.methods.about import About
from regrow.methods.rewire import Rewire, RewireOptions


class SET(Rewire):
    """Moves the weakest connections of `model` to random places; `total` is the length of training in steps."""

    about = About(
        paper="Mocanu et al. 2018",
        when="every `every` steps, not at the end",
        score="drop: nearest to zero, by sign; grow: random",
        cost="three selections and one draw per layer",
    )
    scope = "er"
    fresh_momentum = True
    shared = (*Rewire.shared, "zeta")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        every: int | Literal["auto"] | None = None,
        total: int | None = None,
        zeta: float = 0.3,
        **options: Unpack[RewireOptions],
    ) -> None:
        self.zeta = check_share("zeta", zeta)
        super().__init__(model, optimizer, sparsity=sparsity, every=every, total=total, **options)

    def rewire(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Drop the smallest positive and the largest negative weights, grow as many where there was none."""
        for name, mask in self.masks.items():
            weight, free = self.weights[name], self.count(~mask)
            share = min(self.zeta, free / max(self.targets[name].param.numel() - free, 1))
            kept, moved = torch.zeros_like(mask), 0
            for side in (mask & ~(weight < 0), mask & (weight < 0)):  # NaN is in one of them, where it is refused
                active = self.count(side)
                kept |= self.keep_largest(name, weight, side, active - int(share * active))
                moved += int(share * active)
            yield name, kept | self.keep_largest(name, self.draw(name, t), ~mask, moved)
