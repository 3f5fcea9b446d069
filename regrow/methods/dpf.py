"""Dynamic pruning with feedback (Lin et al., ICLR 2020): gradients at the pruned weights, updates on the dense ones.

Three options go beyond the paper. Two of them help at high sparsity:

* `stabilize=True`: a filter that is masked as a whole has a constant output. Batch norm then divides by the square root
  of its eps instead of a standard deviation, so that the filter's gradient is 30 to 100 times larger than that of its
  neighbors. DPF would apply it to the dense weights, which jump over the threshold and displace useful ones. With this
  option the gradient of a dead filter is scaled down to the median norm of the live filters of its layer. Nothing
  changes while no filter is dead.
* `settle=0.1`: the mask stays fixed for the last tenth of training, so that the remaining weights can converge.

By default the threshold is hard, as in the paper: the model holds ŵ = m⊙w. The analysis in Section 4 covers other
compressors as well. `threshold="soft"` uses ŵ = m⊙sign(w)·max(|w| − τ, 0), where the mask m is the same and τ is the
largest pruned magnitude. A weight that crosses the threshold then enters or leaves the model at zero instead of at ±τ.
This is ST-3 (Vanderschueren & De Vleeschouwer 2022) with a mask every `every` steps; the rescaling of its variant ST-3σ
is left out. m and τ are constant between mask updates. After `freeze()`, or once the mask has settled, training
continues from ŵ and τ is not subtracted again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_fraction, check_steps
from regrow.core.distributed import ShardGroup
from regrow.core.options import MethodInfo, PrunerOptions, required_total
from regrow.core.pruner import Pruner
from regrow.core.schedule import Sparsity
from regrow.core.soft import make_soft_weight, set_thresholds
from regrow.core.targets import Target
from regrow.core.units import check_rows
from regrow.core.weights import Memory, Weight

Threshold = Literal["hard", "soft"]


class DPF(Pruner):
    """Keeps `model` pruned while `optimizer` trains the dense weights (Algorithm 1).

    Every `every` steps the mask is recomputed from the dense weights, so a weight that was pruned too early grows back
    as soon as its accumulated updates lift it over the threshold. The options are those of `Pruner`, and three
    that go beyond the paper (see `regrow.methods.dpf`): `stabilize=True`, `settle=0.1, total_steps=steps`, and
    `threshold="soft"`, which also shrinks the kept weights by the threshold (it needs `unit="weight"` and no `floor`).
    """

    info = MethodInfo(
        paper="Lin et al. 2020",
        when="every `every` steps, to the end",
        score="magnitude of the dense weights",
        cost="one selection over n",
    )
    memory = Memory.KEEP
    resume_options = (*Pruner.resume_options, "stabilize", "settle", "threshold")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Sparsity,
        every: int | Literal["auto"] = "auto",
        stabilize: bool = False,
        settle: float = 0.0,
        total_steps: int | None = None,
        threshold: Threshold = "hard",
        **options: Unpack[PrunerOptions],
    ) -> None:
        self.stabilize, self.settle = stabilize, check_fraction("settle", settle)
        self.threshold, self.total_steps = threshold, total_steps
        if settle:
            self._settled_at = round(required_total(self, total_steps) * (1 - settle))
        elif total_steps is not None:
            check_steps("total_steps", total_steps)
        _check_threshold(threshold, options)
        super().__init__(model, optimizer, sparsity=sparsity, every=every, **options)
        if total_steps is not None:
            until = self._settled_at if settle else total_steps
            if problem := self.shortfall(total_steps, until):
                self.detach(dense=True)
                raise ValueError(problem)
            self.warn_if_idle(until)

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the largest of the dense weights, as many as the schedule leaves."""
        found = self.keep_top(self.weights, self.schedule(t))
        if self.threshold == "hard":
            return found
        masks = dict(found)
        together = list(self.groups.values()) if self.budget.scope == "global" else [[name] for name in masks]
        set_thresholds(self._weights, masks, self.shards, together)
        return masks.items()

    def make_weight(self, target: Target) -> Weight:
        """Return the object that stores ŵ in the parameter and w in a second tensor."""
        if self.stabilize and target.name in self.targets:
            check_rows([target], "stabilize=True")
        if self.threshold == "soft":
            return make_soft_weight(target, self.memory, offload=self._offload)
        return super().make_weight(target)

    def before_update(self) -> None:
        """Freeze the mask when it is time to settle; bound the gradients of dead filters."""
        if self.settle and self.step >= self._settled_at and not self._frozen:
            self.freeze()
        if self.stabilize:
            bound_dead_filters(
                [(target, self._weights[name].kept) for name, target in self.targets.items()], self.shards
            )
        super().before_update()

    def settings(self) -> dict[str, Any]:
        """Return what must be the same when a run is resumed; without `settle`, a training may become longer."""
        return {**super().settings(), "total_steps": self.total_steps if self.settle else None}


def _check_threshold(threshold: str, options: PrunerOptions) -> None:
    if threshold not in get_args(Threshold):
        raise ValueError(f"threshold must be 'hard' (ŵ = m⊙w) or 'soft' (kept weights shrink), got {threshold!r}")
    if threshold == "soft" and (unit := options.get("unit", "weight")) != "weight":
        raise ValueError(f"threshold='soft' needs unit='weight', got unit={unit!r}: it shrinks single weights")
    if threshold == "soft" and (floor := options.get("floor", 0)):
        raise ValueError(
            f"threshold='soft' cannot protect weights below the threshold, which it sets to zero: floor={floor!r} "
            "needs threshold='hard'"
        )


@torch.no_grad()
def bound_dead_filters(layers: list[tuple[Target, Tensor]], shards: ShardGroup) -> None:
    """Scale the gradient of every fully masked filter down to the median norm of its layer's live filters.

    In a layer without a live filter, the median over the whole model is used.
    """
    found = [
        (target, target.grad, target.by_filter(mask).any(dim=1)) for target, mask in layers if target.grad is not None
    ]
    if not any(shards.counts(~live for *_, live in found)):
        return
    norms = [torch.linalg.vector_norm(target.by_filter(gradient), dim=1) for target, gradient, _ in found]
    marked = [shards.all_rows(torch.where(live, norm, -1)) for norm, (*_, live) in zip(norms, found, strict=True)]
    alive = [norm[norm >= 0] for norm in marked]
    everywhere = torch.cat(alive)
    for (target, gradient, live), norm, mine in zip(found, norms, alive, strict=True):
        bound = (mine if len(mine) else everywhere).median() if len(everywhere) else norm.new_zeros(())
        scale = torch.where(live | (norm <= bound), 1.0, bound / norm)
        gradient.mul_(target.spread(scale.to(gradient.dtype)))
