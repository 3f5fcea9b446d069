"""From a recipe to a pruner: the methods count in optimizer steps, recipes in epochs and shares of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from regrow.core import Constant, Cubic, Pruner
from regrow.core.schedule import Schedule
from regrow.methods import DPF, DSR, SET, SNIP, DeepR, Dense, Incremental, OneShot, RigL, SparseMomentum
from regrow.train.config import Method, Recipe, RecipeError

_CLASSES: Mapping[Method, type[Pruner]] = {
    "dpf": DPF,
    "incremental": Incremental,
    "oneshot": OneShot,
    "snip": SNIP,
    "dsr": DSR,
    "sm": SparseMomentum,
    "set": SET,
    "deepr": DeepR,
    "rigl": RigL,
    "dense": Dense,
}

# What a method can be told: the recipe's fields, by the method's own names where they differ.
_WHERE = {"targets": "targets", "include_last": "include_last"}
_MAGNITUDE = {**_WHERE, "scope": "scope", "unit": "unit", "floor": "floor", "decay_at": "decay"}
_REWIRE = {**_WHERE, "scope": "scope"}
_EVERY = {"every": "every"}
_TAKES: Mapping[Method, Mapping[str, str]] = {
    "dpf": _MAGNITUDE | _EVERY,
    "incremental": _MAGNITUDE | _EVERY,
    "oneshot": _MAGNITUDE,
    "snip": _MAGNITUDE,
    "dsr": _REWIRE | _EVERY,
    "sm": _REWIRE | _EVERY | {"move": "rate"},
    "set": _REWIRE | _EVERY | {"move": "zeta"},
    "deepr": _REWIRE,
    "rigl": _REWIRE | _EVERY | {"move": "drop"},
    "dense": _WHERE,
}


def make_pruner(recipe: Recipe, model: nn.Module, optimizer: Optimizer, steps: int) -> Pruner:
    """Attach the recipe's method, where an epoch has `steps` optimizer steps."""
    method: Any = _CLASSES[recipe.method]
    pruner: Pruner = method(model, optimizer, **(_time(recipe, steps) | _options(recipe)))
    return pruner


def make_schedule(recipe: Recipe, steps: int) -> Schedule:
    """Return the ramp in optimizer steps, where an epoch has `steps` of them (Appendix A.2)."""
    end = round(recipe.ramp_share * recipe.epochs * steps)
    if not end:
        return Constant(recipe.sparsity)
    return Cubic(recipe.sparsity, end=end, every=steps if recipe.ramp_by == "epoch" else 1)


def _time(recipe: Recipe, steps: int) -> dict[str, Any]:
    """Return how much the method prunes and when."""
    total = recipe.epochs * steps
    match recipe.method:
        case "dense":
            return {}
        case "dpf":
            return {"sparsity": make_schedule(recipe, steps)}
        case "incremental":
            return {"sparsity": make_schedule(recipe, steps), "every": steps}
        case "oneshot":
            return {"sparsity": recipe.sparsity, "at": total}
        case "snip":
            return {"sparsity": recipe.sparsity}
        case "sm" | "set":
            return {"sparsity": recipe.sparsity, "total": total, "seed": recipe.seed, "every": steps}
        case "dsr" | "deepr" | "rigl":
            return {"sparsity": recipe.sparsity, "total": total, "seed": recipe.seed}


def _options(recipe: Recipe) -> dict[str, Any]:
    """Return what the recipe says beyond the method's defaults; what the method cannot do is an error."""
    takes = _TAKES[recipe.method]
    options = {}
    for field in ("targets", "include_last", "scope", "unit", "floor", "decay_at", "every", "move"):
        value = getattr(recipe, field)
        if value in (None, ()):
            continue
        if field in takes:
            options[takes[field]] = value
        elif recipe.method != "dense":  # the baseline of any recipe
            raise RecipeError(
                f"{recipe.method} takes no {field}, got {value!r}: leave it out. It takes {', '.join(takes)}."
            )
    return options
