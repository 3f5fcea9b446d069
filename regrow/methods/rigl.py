"""RigL (Evci et al. 2020): drop the smallest weights, grow where the gradient of the dense network is largest.

Defaults are the authors': ERK densities, an update every 100 steps until 75 % of training, a share of 0.3 of each
layer's connections that falls to zero by half a cosine; new connections start with weight and momentum zero.
Different from the authors' code: all targets are sparse (they keep some layers dense by name), the update takes place
after the optimizer's step and not in its stead, and its gradient is that of the step's own batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_share
from regrow.methods.about import About
from regrow.methods.rewire import Rewire, RewireOptions


class RigL(Rewire):
    """Moves connections of `model` to where the gradient is largest; `total` is the length of training in steps."""

    about = About(
        paper="Evci et al. 2020",
        when="every `every` steps, until 75 % of `total`",
        score="drop: magnitude; grow: dense gradient",
        cost="two selections per layer",
    )
    scope = "erk"
    period = 100
    until = 0.75
    fresh_momentum = True
    shared = (*Rewire.shared, "drop")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        every: int | Literal["auto"] = 100,
        total: int | None = None,
        drop: float = 0.3,
        **options: Unpack[RewireOptions],
    ) -> None:
        self.drop = check_share("drop", drop)
        self._gradients: dict[str, Tensor] = {}
        super().__init__(model, optimizer, sparsity=sparsity, every=every, total=total, **options)

    @torch.no_grad()
    def before_update(self) -> None:
        """Keep the gradients of a step after which connections move."""
        super().before_update()
        if self.due(self.step + 1) and not self._frozen:
            self._gradients = self.copied_gradients()

    def rewire(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Drop a share of the smallest of each layer, grow as many by |gradient| (what was dropped may grow back)."""
        share = self.drop / 2 * (1 + math.cos(math.pi * t / (self.until * self.total)))
        gradients, self._gradients = self._gradients, {}
        for name, mask in self.masks.items():
            active = self.count(mask)
            moved = int(share * active)
            kept = self.keep_largest(name, self.weights[name], mask, active - moved)
            score = gradients.get(name, torch.zeros_like(mask, dtype=torch.float32))
            yield name, kept | self.keep_largest(name, score, ~kept, moved)
