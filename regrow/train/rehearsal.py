"""`--dry-run`: build everything, try it on some batches, estimate the time, write nothing."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from regrow.analysis import Account, account
from regrow.methods import SFP
from regrow.methods.registry import method_options
from regrow.train.config import Recipe
from regrow.train.loop import DivergedError, Trainer, make_trainer
from regrow.train.pruning import chosen_method

# After the first batches, which warm up and make a mask, short steps are measured for as many seconds.
_BATCHES, _SECONDS = 6, 1.0


@dataclass(frozen=True)
class Rehearsal:
    """What a run would cost."""

    account: Account
    steps_per_epoch: int
    total: int
    seconds: float
    """An estimate of the whole run from the median of the training steps."""
    masked: bool
    """Whether masks were made, as by all methods but dense and feedback."""


class _EnoughError(Exception):
    """All batches of the rehearsal are trained."""


def rehearse(recipe: Recipe) -> Rehearsal:
    """Train a few batches, for about a second if they are short, with masks of the final sparsity."""
    sets = make_trainer(recipe).sets  # what is wrong with the recipe itself is said first
    trainer = make_trainer(_sooner(recipe, sets.steps), sets=sets)
    seconds = _measure(trainer)
    # The first batches warm up; one of several makes a mask, which costs little every so many steps.
    step = median(seconds[2:] or seconds)
    images = len(trainer.sets.test) * trainer.sets.test.batch_size
    # A forward pass is a third of a training step.
    evaluation = step / 3 * images / recipe.batch * (recipe.epochs + recipe.finetune_epochs)
    pruner = trainer.phase.pruner
    costs = account(trainer.model, trainer.model.architecture.input_shape, pruner.masks)
    total = step * trainer.total + evaluation
    return Rehearsal(costs, trainer.sets.steps, trainer.total, total, masked=pruner.requested > 0)


def _measure(trainer: Trainer) -> list[float]:
    """Train, and return what each batch took."""
    seconds: list[float] = []
    mark = time.perf_counter()

    def after_batch() -> None:
        nonlocal mark
        before, mark = mark, time.perf_counter()
        if trainer.step > len(seconds):  # not a batch of an evaluation
            seconds.append(mark - before)
        if len(seconds) >= _BATCHES and sum(seconds) >= _SECONDS:
            raise _EnoughError

    try:
        with contextlib.suppress(_EnoughError):
            trainer.run(after_batch, lambda record: None)
    except DivergedError:
        if len(seconds) < _BATCHES:  # later it may be for want of the ramp, which the run itself has
            raise
    return seconds


def _sooner(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with masks of the final sparsity within the first batches, if that can be chosen."""
    method = chosen_method(recipe)
    known = method_options(method)
    fields: dict[str, Any] = {"ramp_end": 0.0}
    if "every" in known:
        # SFP's period divides an epoch, in which there are `steps`.
        fields["every"] = next(n for n in range(_BATCHES, 0, -1) if method is not SFP or steps % n == 0)
    sooner: dict[str, Any] = {"at": _BATCHES, "initial_sparsity": recipe.sparsity}
    if "switches" in known:
        sooner["switches"] = [0.0, *known["switches"][1:]]
    fields["options"] = (*recipe.options, *(f"{name}={value}" for name, value in sooner.items() if name in known))
    return recipe.changed(**fields)
