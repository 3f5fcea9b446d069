"""Weight decay evaluated at the pruned weights instead of the dense ones."""

from __future__ import annotations

from typing import Literal

import torch
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop

Decay = Literal["dense", "pruned"]

_COUPLED = (SGD, Adam, Adagrad, RMSprop, Adamax, NAdam, RAdam, Adadelta, ASGD)


class DecayAtPruned:
    """Adds λŵ to the gradients in place of the λw that the optimizer would add itself.

    This treats the regulariser as part of the loss, whose gradient the paper takes at ŵ. It can only be told apart from
    the rest of the update where decay is part of the gradient (coupled).
    """

    def __init__(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if not isinstance(optimizer, _COUPLED) or group.get("decoupled_weight_decay"):
                raise ValueError(
                    f"decay='pruned' needs weight decay that is part of the gradient; {type(optimizer).__name__} "
                    "decouples it or has none. Use SGD or Adam, or decay='dense'"
                )
        self._optimizer = optimizer
        self._strengths: list[float] | None = None

    @torch.no_grad()
    def add_to_gradients(self) -> None:
        """Add λŵ to the gradients, and tell the optimizer not to."""
        if getattr(self._optimizer, "grad_scale", None) is not None:
            raise RuntimeError(
                "decay='pruned' needs unscaled gradients: call scaler.unscale_(optimizer) before the step"
            )
        groups = self._optimizer.param_groups
        strengths = self._strengths or [group["weight_decay"] for group in groups]
        for group, strength in zip(groups, strengths, strict=True):
            group["weight_decay"] = 0
            sign = -1 if group.get("maximize") else 1
            for parameter in group["params"]:
                if parameter.grad is not None and strength:
                    parameter.grad.add_(parameter, alpha=sign * strength)
        self._strengths = strengths

    def restore(self) -> None:
        """Give the optimizer its weight decay back."""
        for group, strength in zip(self._optimizer.param_groups, self._strengths or [], strict=False):
            group["weight_decay"] = strength
        self._strengths = None


def at_pruned(decay: str) -> bool:
    """Return whether weight decay is to act on ŵ."""
    if decay not in ("dense", "pruned"):
        raise ValueError(f"decay must be 'dense' (weight decay acts on w) or 'pruned' (on ŵ), got {decay!r}")
    return decay == "pruned"
