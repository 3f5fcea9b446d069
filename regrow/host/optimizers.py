"""What a pruner can be attached to."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Any

from torch.optim import Optimizer

from regrow.host.targets import Target


def hookable(optimizer: Any) -> Optimizer:
    """Return the torch optimizer whose step hooks run."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer  # wrappers such as Accelerate's do not forward hooks
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise TypeError(
            f"{type(optimizer).__name__} is no torch.optim.Optimizer and has no step hooks: "
            "pass the torch optimizer that it steps"
        )
    return optimizer


def check_free(targets: Iterable[Target], optimizer: Optimizer, holders: Mapping[int, object]) -> None:
    """Raise unless the optimizer steps every target, and nobody prunes one of them already (`holders`, by identity)."""
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for target in targets:
        if hasattr(target.param, "_in_backward_optimizers"):
            raise ValueError(f"{target.name} is stepped inside backward, where there is no step to hook into")
        if id(target.param) not in stepped:
            raise ValueError(
                f"the optimizer does not hold {target.name}: give it to the optimizer, leave it out with targets=..., "
                "and keep one optimizer for all targets (not one per parameter inside backward)"
            )
        if id(target.param) in holders:
            gc.collect()  # a pruner and its optimizer hold each other: those that nobody uses may still be there
        if (holder := holders.get(id(target.param))) is not None:
            raise ValueError(f"{target.name} is pruned by a {type(holder).__name__} already: detach() that one first")
