"""Results of training and of fine-tuning, and statistics over the seeds of otherwise equal runs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.runs.find import Run
from regrow.runs.recipe import Recipe

_FINETUNING = ("finetune_epochs", "finetune_optimizer", "finetune_lr", "finetune_lr_drops")
_PRUNING = (
    *("sparsity", "every", "scope", "unit", "targets", "exclude", "include_last", "floor", "weight_decay_at", "settle"),
    *("stabilize", "options", "masks", "schedule", "ramp_end", "ramp_by"),
)
_OF_THE_LAST_EPOCH = ("epoch", "step", "loss", "test_loss", "top1", "top5", "delta")


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over seeds; `std` is None for one seed."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Summarize at least one value.

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
    """The result of a run, after training or after fine-tuning."""

    run: Run
    recipe: Recipe
    """The run's recipe, with the defaults for fields that do not influence this result."""
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
        """The training epochs, or the fine-tuning epochs preceded by the last training epoch."""
        training = [record for record in self.run.records if record["phase"] == "train"]
        return [*training[-1:], *self.run.records[len(training) :]] if self.finetuned else training

    @property
    def final(self) -> Mapping[str, Any]:
        """The numbers of the last epoch (never the best one) and the size of the model."""
        result = self.run.result or {}
        if self.finetuned or not self.run.recipe.finetune_epochs:
            return result
        if self.records:
            return {**result, **self.records[-1]}
        size = {name: value for name, value in result.items() if name not in _OF_THE_LAST_EPOCH}
        return {**size, "top1": result["top1_before_finetuning"]}


@dataclass(frozen=True)
class Group:
    """Outcomes that differ only in the seed."""

    recipe: Recipe
    """Their common recipe, with seed 0."""
    outcomes: tuple[Outcome, ...]
    diverged: int = 0
    """Number of seeds that diverged; they are not part of any mean."""

    @property
    def finished(self) -> bool:
        """Whether the runs have results; finished and unfinished runs are never in one group."""
        return self.outcomes[0].finished

    @property
    def ended(self) -> bool:
        """Whether there are results, or all runs diverged."""
        return self.finished or self.diverged == len(self.outcomes)

    @property
    def finetuned(self) -> bool:
        """Whether these are outcomes of fine-tuning."""
        return self.outcomes[0].finetuned

    @property
    def level(self) -> float | None:
        """The target sparsity, or the reached one if the target depends on the layer; None for a dense network."""
        target = self.recipe.level
        if is_dense(self.recipe):
            return None
        if not isinstance(target, Mapping):
            return target
        reached = self.summary("sparsity")
        return statistics.fmean(target.values()) if reached is None else round(reached.mean, 4)

    def summary(self, quantity: str) -> Summary | None:
        """Summarize a number of the last epoch over the seeds; None if no run has it."""
        values = [outcome.final[quantity] for outcome in self.outcomes if outcome.final.get(quantity) is not None]
        return Summary.of(values) if values else None

    def speeds(self) -> dict[str, Summary]:
        """Summarize images per second for each machine."""
        by_machine: dict[str, list[float]] = {}
        for outcome in self.outcomes:
            if (speed := outcome.run.images_per_second) is not None:
                by_machine.setdefault(outcome.run.machine, []).append(speed)
        return {machine: Summary.of(speeds) for machine, speeds in by_machine.items()}

    def curve(self, quantity: str) -> list[tuple[int, Summary]]:
        """Summarize a number of every epoch over the seeds."""
        by_epoch: dict[int, list[float]] = {}
        for outcome in self.outcomes:
            for record in outcome.records:
                if record.get(quantity) is not None:
                    by_epoch.setdefault(record["epoch"], []).append(record[quantity])
        return [(epoch, Summary.of(values)) for epoch, values in sorted(by_epoch.items())]

    def last_change(self) -> list[tuple[int, Summary]]:
        """Summarize the fraction of mask elements that still change after each training epoch."""
        curves = [outcome.final.get("still_changing") or [] for outcome in self.outcomes]
        epochs = min((min(len(curve), self.recipe.epochs + 1) for curve in curves), default=0)
        return [(epoch, Summary.of([curve[epoch] for curve in curves])) for epoch in range(epochs)]


def outcomes_of(run: Run) -> list[Outcome]:
    """Return the outcomes of `run`; training and fine-tuning are two, as in the paper's tables."""
    training = Outcome(run, identity(run.recipe, finetuned=False), finetuned=False)
    if not run.recipe.finetune_epochs:
        return [training] if training.finished or training.diverged or training.records else []
    tuning = Outcome(run, identity(run.recipe, finetuned=True), finetuned=True)
    begun = tuning.finished or tuning.diverged or len(tuning.records) > 1
    known = training.records or training.diverged or "top1_before_finetuning" in (run.result or {})
    return [*([training] if known else []), *([tuning] if begun else [])]


def group(runs: Iterable[Run]) -> tuple[list[Group], list[tuple[Run, Run]]]:
    """Group outcomes that differ only in the seed; also return each repeated run with the run that it repeats.

    Repeated runs are not counted as another seed. If a group has finished runs, its unfinished ones are left
    out; diverged ones are counted.
    """
    outcomes: dict[str, Outcome] = {}
    repeated: list[tuple[Run, Run]] = []
    # As in the paper's tables: for the result of training, prefer a run without fine-tuning.
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
    """Return whether the method is the dense baseline."""
    # By name, because results are grouped without importing torch, also those of methods that are not installed here.
    return recipe.method == "dense"


def idle_fields(recipe: Recipe, *, finetuned: bool) -> tuple[str, ...]:
    """Return the fields of `recipe` that do not influence the outcome."""
    pruning = _PRUNING if is_dense(recipe) else ()
    return pruning if finetuned else (*pruning, *_FINETUNING)


def identity(recipe: Recipe, *, finetuned: bool) -> Recipe:
    """Return `recipe` with the defaults for fields that do not influence the outcome."""
    defaults = {field.name: field.default for field in dataclasses.fields(Recipe)}
    return recipe.changed(**{name: defaults[name] for name in idle_fields(recipe, finetuned=finetuned)})
