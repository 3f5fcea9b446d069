"""`--dry-run`: build everything, train some batches, estimate the time of the run, and write nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from regrow.analysis import Account, account
from regrow.methods.registry import method_options
from regrow.runs.recipe import Recipe
from regrow.train.build import chosen_method
from regrow.train.loop import DivergedError, Trainer, make_trainer

# At least this many batches, and more of them if they take less than this many seconds.
_BATCHES, _SECONDS = 6, 1.0


@dataclass(frozen=True)
class DryRun:
    """Cost of a run."""

    account: Account
    steps_per_epoch: int
    total: int
    seconds: float
    """Estimate for the whole run, from the median of the training steps."""
    masked: bool
    """Whether masks were made, as by all methods except dense and feedback."""


class _DoneError(Exception):
    """All batches of the dry run are trained."""


def dry_run(recipe: Recipe, imports: Collection[str] = ()) -> DryRun:
    """Train a few batches with masks of the final sparsity, for about a second if they are short."""
    sets = make_trainer(recipe, imports=imports).sets  # reports errors in the recipe itself first
    trainer = make_trainer(_with_early_masks(recipe, sets.steps), sets=sets, imports=imports)
    seconds = _measure(trainer)
    # The median leaves out warm-up and the batch that makes a mask.
    step = median(seconds[2:] or seconds)
    images = len(trainer.sets.test) * trainer.sets.test.batch_size
    # A forward pass is a third of a training step.
    evaluation = step / 3 * images / trainer.sets.train.batch_size * (recipe.epochs + recipe.finetune_epochs)
    pruner = trainer.phase.pruner
    costs = account(trainer.model, trainer.sets.input, pruner.masks)
    total = step * trainer.total + evaluation
    return DryRun(costs, trainer.sets.steps, trainer.total, total, masked=pruner.requested > 0)


def _measure(trainer: Trainer) -> list[float]:
    """Train, and return the seconds of each batch."""
    seconds: list[float] = []
    mark = time.perf_counter()

    def after_batch() -> None:
        nonlocal mark
        before, mark = mark, time.perf_counter()
        if trainer.step > len(seconds):  # not a batch of an evaluation
            seconds.append(mark - before)
        if len(seconds) >= _BATCHES and sum(seconds) >= _SECONDS:
            raise _DoneError

    try:
        with contextlib.suppress(_DoneError):
            trainer.run(after_batch, lambda record: None)
    except DivergedError:
        if len(seconds) < _BATCHES:  # later, the missing ramp may be the reason, which the real run has
            raise
    return seconds


def _with_early_masks(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with masks of the final sparsity within the first batches, if the method allows it."""
    method = chosen_method(recipe)
    known = method_options(method)
    fields: dict[str, Any] = {"ramp_end": 0.0}
    if "every" in known:
        divides = method.every_divides_epoch
        fields["every"] = next(n for n in range(_BATCHES, 0, -1) if not divides or steps % n == 0)
    least = min(recipe.level.values()) if isinstance(recipe.level, Mapping) else recipe.level
    sooner: dict[str, Any] = {"at": _BATCHES, "initial_sparsity": least}
    if "switches" in known:
        sooner["switches"] = [0.0, *known["switches"][1:]]
    fields["options"] = (*recipe.options, *(f"{name}={value}" for name, value in sooner.items() if name in known))
    return recipe.changed(**fields)
