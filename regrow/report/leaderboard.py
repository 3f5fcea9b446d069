"""The table of a report: final-epoch accuracy at the reached sparsity, mean ± std over seeds, the paper's beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regrow.report.outcomes import Group, Summary
from regrow.report.runs import Run
from regrow.report.tasks import Entry, Task, method_title, percent
from regrow.report.text import plus_minus
from regrow.train.config import Recipe
from regrow.train.text import duration, quantity


@dataclass(frozen=True)
class Published:
    """An accuracy in print, and how large the training was."""

    mean: float | None
    """Top-1 in percent; None where the training is reported as not having converged."""
    std: float | None
    scale: str
    """What makes it another experiment than ours, such as `300 epochs`."""

    def __str__(self) -> str:
        """Return the number as it is printed."""
        if self.mean is None:
            return "did not converge"
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


Lookup = Callable[[Recipe, bool], Published | None]
"""Gives what was published for a recipe, with fine-tuning or without, or None."""


@dataclass(frozen=True)
class Row:
    """One line of the table, as text."""

    label: str
    settings: str
    series: str
    sparsity: str
    top1: str
    top5: str
    seeds: int
    published: Published | None
    parameters: str
    macs: str
    epochs: str
    time: str


@dataclass(frozen=True)
class Pending:
    """A run that is not finished."""

    name: str
    label: str
    progress: str
    top1: str


def rows(task: Task, published: Lookup | None) -> list[Row]:
    """Return the lines of the finished groups, by sparsity, then by accuracy, and of those that diverged."""
    return [_row(entry, published) for entry in task.entries if entry.group.ended]


def pending(task: Task) -> list[Pending]:
    """Return the runs of a task that are not finished."""
    return [_pending(run) for run in task.unfinished]


def _row(entry: Entry, published: Lookup | None) -> Row:
    group, recipe = entry.group, entry.group.recipe
    return Row(
        label=entry.label,
        settings=entry.settings,
        series=entry.series,
        sparsity="–" if group.level is None else _percent(group.summary("sparsity")),
        top1=_accuracy(group),
        top5=plus_minus(group.summary("top5")),
        seeds=len(group.outcomes),
        published=published(recipe, group.finetuned) if published else None,
        parameters=_left(group, "nonzeros", "parameters"),
        macs=_left(group, "macs_kept", "macs"),
        epochs=f"{recipe.epochs} + {recipe.finetune_epochs}" if group.finetuned else f"{recipe.epochs}",
        time=_time(group),
    )


def _accuracy(group: Group) -> str:
    """Return the accuracy of the runs that converged; the star is the paper's mark for those that did not."""
    if not group.finished:
        return "★ diverged"
    return plus_minus(group.summary("top1")) + (f" (★ {group.diverged} more diverged)" if group.diverged else "")


def _percent(summary: Summary | None) -> str:
    return "–" if summary is None else f"{100 * summary.mean:.2f} %"


def _left(group: Group, kept: str, everything: str) -> str:
    left, total = group.summary(kept), group.summary(everything)
    if left is None or total is None:
        return "–"
    return f"{quantity(left.mean)} ({100 * left.mean / total.mean:.3g} %)"


def _time(group: Group) -> str:
    """The time of whole runs; that of training alone was not taken where fine-tuning followed."""
    seconds = group.summary("seconds")
    tuned_later = any(outcome.run.recipe.finetune_epochs for outcome in group.outcomes) and not group.finetuned
    return "–" if seconds is None or tuned_later else duration(seconds.mean)


def _pending(run: Run) -> Pending:
    recipe, done = run.recipe, run.records
    level = f" {percent(recipe.sparsity)}" if recipe.takes_sparsity else ""
    return Pending(
        name=str(run.folder),
        label=f"{method_title(recipe.method)}{level}, seed {recipe.seed}",
        progress=f"{done[-1]['epoch'] if done else 0} of {recipe.epochs + recipe.finetune_epochs} epochs",
        top1=f"{done[-1]['top1']:.2f}" if done else "–",
    )
