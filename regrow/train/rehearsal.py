"""`--dry-run`: build everything, try it on a few batches, estimate the time, write nothing."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from itertools import pairwise

from regrow.analysis import Account, account
from regrow.train.config import Recipe
from regrow.train.loop import make_trainer

_BATCHES = 6


@dataclass(frozen=True)
class Rehearsal:
    """What a run would cost."""

    account: Account
    steps_per_epoch: int
    total: int
    seconds: float
    """An estimate of the whole run from the quickest of the training steps."""


class _EnoughError(Exception):
    """All batches of the rehearsal are trained."""


def rehearse(recipe: Recipe) -> Rehearsal:
    """Train a few batches and make one mask, at the final sparsity."""
    sooner = {} if recipe.method == "dense" else {"every": _BATCHES, "ramp_end": 0.0}
    trainer = make_trainer(recipe.changed(**sooner))
    marks: list[float] = []

    def after_step() -> None:
        marks.append(time.perf_counter())
        if len(marks) == _BATCHES:
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        trainer.run(after_step, lambda record: None)
    # The first batches warm up and the last makes the mask, which costs little every so many steps.
    step = min(after - before for before, after in pairwise(marks[1:-1]))
    images = len(trainer.sets.test) * trainer.sets.test.batch_size
    # A forward pass is a third of a training step.
    evaluation = step / 3 * images / recipe.batch * (recipe.epochs + recipe.finetune_epochs)
    costs = account(trainer.model, trainer.model.architecture.input_shape, trainer.phase.pruner.masks)
    return Rehearsal(costs, trainer.sets.steps, trainer.total, step * trainer.total + evaluation)
