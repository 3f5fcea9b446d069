"""SR-STE (Zhou et al. 2021): N:M sparsity with a straight-through gradient and a decay of the pruned weights.

The mask keeps the N largest of M neighboring weights and is recomputed at every step. The gradient at the pruned
weights updates the dense ones, as in DPF with `unit="2:4"`. The term λ_w (1 − m)⊙w is added to it; it moves pruned
weights toward zero, so that the mask changes less. Defaults are the authors': 2:4 and λ_w = 2e-4 from the first step to
the last, groups along the input channels. Different from the authors' code: layers whose input channels are not a
multiple of M stay dense, and so does the last linear layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_amount
from regrow.core.hooks import WeightDecayAt, gradient_scale
from regrow.core.options import MethodInfo, TargetOptions
from regrow.core.pruner import Pruner
from regrow.core.units import Groups, parse_unit
from regrow.core.weights import Memory


class SRSTE(Pruner):
    """Keeps N of M weights of `model` while `optimizer` trains the dense ones; `unit="2:4"` fixes the sparsity too."""

    info = MethodInfo(
        paper="Zhou et al. 2021",
        when="every `every` steps, to the end",
        score="magnitude of the dense weights, in groups of M",
        cost="one sort per group",
        budget="N of M everywhere",
    )
    memory = Memory.KEEP
    period = 1
    takes_sparsity = False
    resume_options = (*Pruner.resume_options, "lambda_w")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        every: int | Literal["auto"] = "auto",
        unit: str = "2:4",
        lambda_w: float = 2e-4,
        weight_decay_at: WeightDecayAt = "dense",
        offload: bool = False,
        **options: Unpack[TargetOptions],
    ) -> None:
        groups = parse_unit(unit)
        if not isinstance(groups, Groups):
            raise ValueError(f"SRSTE trains N:M sparsity: unit must be like '2:4', got {unit!r}")
        self.lambda_w = check_amount("lambda_w", lambda_w, zero=True)
        super().__init__(
            model,
            optimizer,
            sparsity=groups.sparsity,
            every=every,
            unit=unit,
            weight_decay_at=weight_decay_at,
            offload=offload,
            **options,
        )

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the N largest of every M."""
        return self.keep_top(self.weights, self.schedule(t))

    @torch.no_grad()
    def before_update(self) -> None:
        """Add λ_w (1 − m)⊙w to the gradient."""
        super().before_update()
        if self._frozen:
            return
        strength = self.lambda_w * gradient_scale(self.optimizer)
        for name, target in self.targets.items():
            if target.grad is not None:
                pruned = self.weights[name].to(target.grad).masked_fill(self.masks[name], 0)
                target.grad.add_(pruned.mul_(strength))
