"""`--dry-run`: build everything, try it on a few batches, estimate the time, write nothing."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

from regrow.analysis import Account, account
from regrow.methods.registry import method_options
from regrow.train.config import Recipe
from regrow.train.loop import make_trainer
from regrow.train.pruning import chosen_method

_BATCHES = 6


@dataclass(frozen=True)
class Rehearsal:
    """What a run would cost."""

    account: Account
    steps_per_epoch: int
    total: int
    seconds: float
    """An estimate of the whole run from the quickest of the training steps."""
    masked: bool
    """Whether a mask was made, as by all methods but dense and feedback."""


class _EnoughError(Exception):
    """All batches of the rehearsal are trained."""


def rehearse(recipe: Recipe) -> Rehearsal:
    """Train a few batches and make one mask, at the final sparsity."""
    trainer = make_trainer(_sooner(recipe))
    seconds: list[float] = []
    mark = time.perf_counter()

    def after_batch() -> None:
        nonlocal mark
        before, mark = mark, time.perf_counter()
        if trainer.step > len(seconds):  # not a batch of an evaluation
            seconds.append(mark - before)
        if len(seconds) == _BATCHES:
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        trainer.run(after_batch, lambda record: None)
    # The first batches warm up and the last makes the mask, which costs little every so many steps.
    step = min(seconds[2:-1] or seconds)
    images = len(trainer.sets.test) * trainer.sets.test.batch_size
    # A forward pass is a third of a training step.
    evaluation = step / 3 * images / recipe.batch * (recipe.epochs + recipe.finetune_epochs)
    pruner = trainer.phase.pruner
    costs = account(trainer.model, trainer.model.architecture.input_shape, pruner.masks)
    total = step * trainer.total + evaluation
    return Rehearsal(costs, trainer.sets.steps, trainer.total, total, masked=pruner.requested > 0)


def _sooner(recipe: Recipe) -> Recipe:
    """Return the recipe with a mask of the final sparsity at the last batch of the rehearsal, if that can be chosen."""
    known = method_options(chosen_method(recipe))
    fields: dict[str, Any] = {"ramp_end": 0.0}
    if "every" in known:
        fields["every"] = _BATCHES
    if "at" in known:
        fields["options"] = (*recipe.options, f"at={_BATCHES}")
    return recipe.changed(**fields)
