"""Two remedies for dynamic masks at high sparsity, beyond the paper: bounded gradients of dead filters, a late rest.

A filter that is masked as a whole emits a constant. Batch norm then divides by the square root of its eps instead of a
standard deviation, so that the filter's gradient comes out 30 to 100 times larger than its neighbours'. DPF applies it
to the dense weights, which jump over the threshold and evict good ones. `stabilise=True` scales the gradient of a dead
filter down to the median norm of the live filters of its layer: the feedback stays alive, its size becomes ordinary,
and nothing at all changes while no filter is dead. `settle=0.1` keeps the mask for the last tenth of training, so that
the weights that are left can converge.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal, Required, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_share, check_steps
from regrow.choices.units import check_rows
from regrow.core.schedule import Schedule
from regrow.core.weights import Weight
from regrow.host.shards import Shards
from regrow.host.targets import Target
from regrow.methods.options import Options, needed
from regrow.methods.pruner import Pruner


class SteadyOptions(Options, total=False):
    """The options of `Pruner`."""

    sparsity: Required[float | Schedule]
    every: int | Literal["auto"]


class Steady(Pruner, ABC):
    """A pruner with the options `stabilise` and `settle` (a share of the `total` optimizer steps)."""

    shared = (*Pruner.shared, "stabilise", "settle", "total")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        stabilise: bool = False,
        settle: float = 0.0,
        total: int | None = None,
        **options: Unpack[SteadyOptions],
    ) -> None:
        self.stabilise, self.settle = stabilise, check_share("settle", settle)
        self.total: int | None = None  # which makes no difference without a rest: a training may become longer
        if settle:
            meaning = "the optimizer steps of the whole training, to know its last ones"
            self.total = needed(self, total, "total", meaning)
            self._rest = round(self.total * (1 - settle))
        elif total is not None:
            check_steps("total", total)
        self.total_steps = total
        super().__init__(model, optimizer, **options)
        if total is not None:
            self.warn_if_idle(self._rest if settle else total)

    def hold(self, target: Target) -> Weight:
        """Return what keeps ŵ and w; filters whose gradient cannot be bounded are refused before anything changes."""
        if self.stabilise and target.name in self.targets:
            check_rows([target], "stabilise=True")
        return super().hold(target)

    @abstractmethod
    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) pairs for step `t`."""

    def before_update(self) -> None:
        """Freeze when the rest begins; bound the gradients of dead filters."""
        if self.settle and self.step >= self._rest and not self._frozen:
            self.freeze()
        if self.stabilise:
            bound_dead_filters(
                [(target, self._weights[name].left) for name, target in self.targets.items()], self.shards
            )
        super().before_update()


@torch.no_grad()
def bound_dead_filters(layers: list[tuple[Target, Tensor]], shards: Shards) -> None:
    """Scale the gradient of every fully masked filter down to the median norm of its layer's live filters.

    A layer without a live filter is measured by the median of the whole model's.
    """
    found = [
        (target.grad.movedim(target.out_dim, 0), mask.movedim(target.out_dim, 0).flatten(1).any(dim=1))
        for target, mask in layers
        if target.grad is not None
    ]
    if not any(shards.counts(~live for _, live in found)):
        return
    norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient, _ in found]
    marked = [shards.rows(torch.where(live, norm, -1)) for norm, (_, live) in zip(norms, found, strict=True)]
    alive = [norm[norm >= 0] for norm in marked]
    everywhere = torch.cat(alive)
    for (gradient, live), norm, mine in zip(found, norms, alive, strict=True):
        bound = (mine if len(mine) else everywhere).median() if len(everywhere) else norm.new_zeros(())
        scale = torch.where(live | (norm <= bound), 1.0, bound / norm)
        gradient.mul_(scale.to(gradient.dtype).view(-1, *[1] * (gradient.ndim - 1)))
