"""From a recipe to a pruner: the methods count in optimizer steps, recipes in epochs and shares of training."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from regrow.core import Constant, Cubic, Pruner
from regrow.core.schedule import Schedule
from regrow.methods import DPF, Dense, Incremental, OneShot
from regrow.train.config import Recipe


def make_schedule(recipe: Recipe, steps: int) -> Schedule:
    """Return the ramp in optimizer steps, where an epoch has `steps` of them (Appendix A.2)."""
    end = round(recipe.ramp_share * recipe.epochs * steps)
    if not end:
        return Constant(recipe.sparsity)
    return Cubic(recipe.sparsity, end=end, every=steps if recipe.ramp_by == "epoch" else 1)


def make_pruner(recipe: Recipe, model: nn.Module, optimizer: Optimizer, steps: int) -> Pruner:
    """Attach the recipe's method, where an epoch has `steps` optimizer steps."""
    where: dict[str, Any] = {"targets": recipe.targets or None, "include_last": recipe.include_last}
    how = {"scope": recipe.scope, "unit": recipe.unit, "floor": recipe.floor, "decay": recipe.decay_at} | where
    ramp = make_schedule(recipe, steps)
    match recipe.method:
        case "dense":
            return Dense(model, optimizer, **where)
        case "dpf":
            return DPF(model, optimizer, sparsity=ramp, every=recipe.every or 16, **how)
        case "incremental":
            return Incremental(model, optimizer, sparsity=ramp, every=recipe.every or steps, **how)
        case "oneshot":
            return OneShot(model, optimizer, sparsity=recipe.sparsity, at=recipe.epochs * steps, **how)
