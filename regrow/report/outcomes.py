"""What runs came to, and the statistics over seeds: runs that differ in nothing else are one group."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.report.runs import Run
from regrow.train.config import Recipe

_FINETUNING = ("finetune_epochs", "finetune_optimizer", "finetune_lr", "finetune_drops")
_PRUNING = (
    *("sparsity", "every", "scope", "unit", "targets", "include_last", "floor", "decay_at"),
    *("options", "masks", "ramp_end", "ramp_by"),
)
_OF_THE_LAST_EPOCH = ("epoch", "step", "loss", "test_loss", "top1", "top5", "delta")


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over seeds; one seed has no deviation."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Summarise at least one value.

        >>> Summary.of([1.0, 3.0])
        Summary(mean=2.0, std=1.4142135623730951, n=2)
        """
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    @property
    def low(self) -> float:
        """One deviation below the mean."""
        return self.mean - (self.std or 0.0)

    @property
    def high(self) -> float:
        """One deviation above the mean."""
        return self.mean + (self.std or 0.0)


@dataclass(frozen=True)
class Outcome:
    """What a run came to, at the end of its training or of the fine-tuning after it."""

    run: Run
    recipe: Recipe
    """What decided the outcome: fields that made no difference to it have their defaults."""
    finetuned: bool

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return self.run.result is not None

    @property
    def diverged(self) -> bool:
        """Whether the loss or the weights became infinite or NaN before the end."""
        return self.run.diverged is not None and (self.finetuned or self.run.diverged["phase"] == "train")

    @property
    def records(self) -> list[dict[str, Any]]:
        """The epochs of training, or of fine-tuning with the one before it, from which its curve goes on."""
        training = [record for record in self.run.records if record["phase"] == "train"]
        return [*training[-1:], *self.run.records[len(training) :]] if self.finetuned else training

    @property
    def final(self) -> Mapping[str, Any]:
        """The numbers of the last epoch, never the best, with the size of the model; the mask was final by then."""
        result = self.run.result or {}
        if self.finetuned or not self.run.recipe.finetune_epochs:
            return result
        if self.records:
            return {**result, **self.records[-1]}
        size = {name: value for name, value in result.items() if name not in _OF_THE_LAST_EPOCH}
        return {**size, "top1": result["top1_before_finetuning"]}


@dataclass(frozen=True)
class Group:
    """Outcomes that differ in the seed alone."""

    recipe: Recipe
    """The recipe of all of them, with seed 0."""
    outcomes: tuple[Outcome, ...]
    diverged: int = 0
    """How many seeds diverged, and are in no mean."""

    @property
    def finished(self) -> bool:
        """Whether its runs have results; a group never mixes finished and unfinished ones."""
        return self.outcomes[0].finished

    @property
    def ended(self) -> bool:
        """Whether it has something to report: results, or that all its runs diverged."""
        return self.finished or self.diverged == len(self.outcomes)

    @property
    def finetuned(self) -> bool:
        """Whether these are outcomes of fine-tuning."""
        return self.outcomes[0].finetuned

    @property
    def level(self) -> float | None:
        """The sparsity that was asked for; None for a dense network."""
        return None if is_dense(self.recipe) else self.recipe.sparsity

    def summary(self, quantity: str) -> Summary | None:
        """Summarise a number of the final epoch over the seeds; None where there is none."""
        values = [outcome.final[quantity] for outcome in self.outcomes if outcome.final.get(quantity) is not None]
        return Summary.of(values) if values else None

    def speeds(self) -> dict[str, Summary]:
        """Summarise images per second, machine by machine."""
        by_machine: dict[str, list[float]] = {}
        for outcome in self.outcomes:
            if (speed := outcome.run.images_per_second) is not None:
                by_machine.setdefault(outcome.run.machine, []).append(speed)
        return {machine: Summary.of(speeds) for machine, speeds in by_machine.items()}

    def curve(self, quantity: str) -> list[tuple[int, Summary]]:
        """Summarise a number of every epoch over the seeds."""
        by_epoch: dict[int, list[float]] = {}
        for outcome in self.outcomes:
            for record in outcome.records:
                if record.get(quantity) is not None:
                    by_epoch.setdefault(record["epoch"], []).append(record[quantity])
        return [(epoch, Summary.of(values)) for epoch, values in sorted(by_epoch.items())]

    def last_change(self) -> list[tuple[int, Summary]]:
        """Summarise the share of mask elements that still change after each epoch of training."""
        curves = [outcome.final.get("still_changing") or [] for outcome in self.outcomes]
        epochs = min((min(len(curve), self.recipe.epochs + 1) for curve in curves), default=0)
        return [(epoch, Summary.of([curve[epoch] for curve in curves])) for epoch in range(epochs)]


def outcomes_of(run: Run) -> list[Outcome]:
    """Return what `run` came to: training and fine-tuning are two outcomes, as in the paper's tables."""
    training = Outcome(run, identity(run.recipe, finetuned=False), finetuned=False)
    if not run.recipe.finetune_epochs:
        return [training] if training.finished or training.diverged or training.records else []
    tuning = Outcome(run, identity(run.recipe, finetuned=True), finetuned=True)
    begun = tuning.finished or tuning.diverged or len(tuning.records) > 1
    known = training.records or training.diverged or "top1_before_finetuning" in (run.result or {})
    return [*([training] if known else []), *([tuning] if begun else [])]


def group(runs: Iterable[Run]) -> tuple[list[Group], list[tuple[Run, Run]]]:
    """Group outcomes by everything but the seed; also return the runs that repeat another one, each with it.

    A repeated run is no further seed and is not counted. Unfinished runs are left out where finished ones exist;
    diverged ones are counted.
    """
    outcomes: dict[str, Outcome] = {}
    repeated: list[tuple[Run, Run]] = []
    # As in the paper's tables: a run without fine-tuning speaks for itself, and comes before one that goes on.
    for run in sorted(runs, key=lambda run: (run.result is None, run.recipe.finetune_epochs > 0)):
        for outcome in outcomes_of(run):
            first = outcomes.setdefault(outcome.recipe.key(), outcome)
            if first is not outcome and first.run.recipe.key() == run.recipe.key() and not outcome.finetuned:
                repeated.append((run, first.run))
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes.values():
        groups.setdefault(outcome.recipe.changed(seed=0).key(), []).append(outcome)
    return [_group(members) for members in groups.values()], repeated


def _group(outcomes: list[Outcome]) -> Group:
    diverged = [outcome for outcome in outcomes if outcome.diverged]
    finished = [outcome for outcome in outcomes if outcome.finished] or diverged or outcomes
    ordered = sorted(finished, key=lambda outcome: outcome.recipe.seed)
    return Group(ordered[0].recipe.changed(seed=0), tuple(ordered), len(diverged))


def is_dense(recipe: Recipe) -> bool:
    """Return whether nothing is pruned."""
    return recipe.method == "dense"


def idle_fields(recipe: Recipe, *, finetuned: bool) -> tuple[str, ...]:
    """Return the fields of `recipe` that cannot have made a difference."""
    pruning = _PRUNING if is_dense(recipe) else ()
    return pruning if finetuned else (*pruning, *_FINETUNING)


def identity(recipe: Recipe, *, finetuned: bool) -> Recipe:
    """Return `recipe` with the fields that cannot have made a difference set to their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(Recipe)}
    return recipe.changed(**{name: defaults[name] for name in idle_fields(recipe, finetuned=finetuned)})
