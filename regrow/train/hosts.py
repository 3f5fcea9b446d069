"""Attach a method by its name in a training loop of another framework, whose number of steps is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from regrow.checks import warn
from regrow.core.pruner import Pruner
from regrow.core.schedule import Cubic, ramped
from regrow.methods.registry import find_method, method_options
from regrow.train.build import ramps

# As in recipes: the sparsity is final after three quarters of training.
_RAMP = 0.75


def attach(
    method: str | type[Pruner],
    model: nn.Module,
    optimizer: Optimizer,
    total_steps: int,
    options: dict[str, Any],
    *,
    likely: bool = False,
) -> Pruner:
    """Attach `method` to a training of `total_steps` optimizer steps.

    A number as sparsity becomes a cubic ramp over the first 75 % of the steps, if the method can ramp. The masks are
    updated as often as suits the length (`every="auto"`), unless `options` says otherwise. A schedule that cannot reach
    its final sparsity in that time is an error, or a warning if the length is only `likely`.
    """
    cls = find_method(method) if isinstance(method, str) else method
    known = method_options(cls)
    sparsity, end = options.get("sparsity"), round(_RAMP * total_steps)
    given = dict(options)
    if isinstance(sparsity, float | int | Mapping) and ramps(cls) and end:
        given["sparsity"] = ramped(sparsity, lambda final: Cubic(final, end=end))
    if "total_steps" in known and not (likely and "settle" in known and not given.get("settle")):
        given.setdefault("total_steps", total_steps)
    if "every" in known:
        given.setdefault("every", "auto")
    pruner = cls(model, optimizer, **given)
    if problem := "" if "total_steps" in given else pruner.shortfall(total_steps):
        if not likely:
            pruner.detach(dense=True)
            raise ValueError(problem)
        warn(problem)
    return pruner
