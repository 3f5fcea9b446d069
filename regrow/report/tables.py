"""Which runs are comparable, how they are named, and the rows of the leaderboard.

A task is a network on a data set; a series is one way to prune it, at any sparsity.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from regrow import data
from regrow.methods.registry import find_method
from regrow.runs.find import Run
from regrow.runs.outcomes import Group, Summary, idle_fields
from regrow.runs.recipe import Recipe
from regrow.text import duration, quantity

# Accuracies are comparable only between runs that agree in these fields.
_TASK = ("data", "model", "width", "stem_stride", "growth", "holdout")
# Runs that differ in these fields belong to different series, whatever their sparsity.
_WAY = ("scope", "unit", "targets", "exclude", "include_last", "epochs")
_NAMED_ELSEWHERE = (*_TASK, "method", "sparsity", "seed", "device", "threads")
_COLUMNS = ("epochs", "finetune_epochs")  # columns of the leaderboard


@dataclass(frozen=True)
class Entry:
    """A group of runs and its name."""

    group: Group
    details: tuple[str, ...]
    """Settings that distinguish it from others with the same method and sparsity."""
    settings: str
    """Other fields in which its recipe differs from others of the task."""

    @property
    def series(self) -> str:
        """Name without the sparsity, such as `DPF + FT · lr 0.2`."""
        return " · ".join([self._method, *self.details])

    @property
    def label(self) -> str:
        """Name with the sparsity, such as `DPF + FT 90 % · lr 0.2`."""
        level = "" if self.group.level is None else f" {self.group.recipe.sparsity_title}"
        return " · ".join([self._method + level, *self.details])

    @property
    def _method(self) -> str:
        return method_title(self.group.recipe.method) + (" + FT" if self.group.finetuned else "")


@dataclass(frozen=True)
class Task:
    """A network on a data set, and its runs."""

    title: str
    slug: str
    """The title in the form used in file names."""
    entries: tuple[Entry, ...]
    """Sorted by sparsity, then by accuracy (best first); unfinished ones last."""
    unfinished: tuple[Run, ...]

    @property
    def series(self) -> list[str]:
        """The series in the order of their colors: dense first, then in the order of `entries`."""
        return list(dict.fromkeys(entry.series for entry in self.entries))

    @property
    def levels(self) -> list[float]:
        """The target sparsities."""
        return sorted({entry.group.level for entry in self.entries if entry.group.level is not None})

    @property
    def main_level(self) -> float | None:
        """The sparsity with the most runs; of several, the highest."""
        runs = Counter[float | None]()
        for entry in self.entries:
            runs[entry.group.level] += 0 if entry.group.finetuned else len(entry.group.outcomes)
        return max(self.levels, key=lambda level: (runs[level], level), default=None)


def make_tasks(groups: Iterable[Group], runs: Iterable[Run]) -> list[Task]:
    """Assign groups and unfinished runs to tasks."""
    found: dict[tuple[Any, ...], tuple[list[Group], list[Run]]] = {}
    for member in groups:
        found.setdefault(_task_key(member.recipe), ([], []))[0].append(member)
    for run in runs:
        if run.result is None and run.diverged is None:
            found.setdefault(_task_key(run.recipe), ([], []))[1].append(run)
    tasks = [_task(members, unfinished) for members, unfinished in found.values()]
    return sorted(tasks, key=lambda task: task.slug)


def percent(fraction: float) -> str:
    """Return a fraction as text.

    >>> percent(0.9)
    '90 %'
    """
    return f"{100 * fraction:.6g} %"


def method_title(name: str) -> str:
    """Return the name of a method's class, or `name` if the method is unknown.

    >>> method_title("oneshot")
    'OneShot'
    """
    try:
        return find_method(name).__name__
    except ValueError:
        return name


def _task_key(recipe: Recipe) -> tuple[Any, ...]:
    return tuple(getattr(recipe, name) for name in _TASK)


def _task(groups: Sequence[Group], unfinished: Sequence[Run]) -> Task:
    recipe = groups[0].recipe if groups else unfinished[0].recipe
    entries = sorted(_entries(groups), key=_rank)
    title = _title(recipe)
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return Task(title, slug, tuple(entries), tuple(unfinished))


def _title(recipe: Recipe) -> str:
    shape = [_setting(recipe, name) for name in ("width", "stem_stride", "growth") if getattr(recipe, name) is not None]
    held_out = [f"{recipe.holdout:,} held-out training images"] if recipe.holdout else []
    return " · ".join([recipe.model, *shape, data.title(recipe.data), *held_out])


def _rank(entry: Entry) -> tuple[Any, ...]:
    level, accuracy = entry.group.level, entry.group.summary("top1")
    return (accuracy is None, -1.0 if level is None else level, -accuracy.mean if accuracy else 0.0, entry.label)


def _entries(groups: Sequence[Group]) -> list[Entry]:
    anywhere = _varying(groups, lambda _: ())
    by_method: dict[tuple[Any, ...], list[Group]] = {}
    for member in groups:
        by_method.setdefault((member.recipe.method, member.finetuned), []).append(member)
    entries = []
    for members in by_method.values():
        # A field that differs only between sparsities, such as a tuned learning rate, must not split a curve.
        ways = [name for name in _varying(members, lambda _: ()) if name in _WAY]
        naming = [*ways, *(name for name in _varying(members, lambda member: member.level) if name not in ways)]
        rest = [name for name in anywhere if name not in (*naming, *_COLUMNS)]
        for member in members:
            details, settings = _settings(member, naming), _settings(member, rest)
            entries.append(Entry(member, tuple(details), ", ".join(settings)))
    return entries


def _settings(member: Group, names: Sequence[str]) -> list[str]:
    """Return the fields that `member` sets; those left to the method's default are not named."""
    idle = idle_fields(member.recipe, finetuned=member.finetuned)
    named = [name for name in names if name not in idle]
    chosen = [name for name in named if _is_set(getattr(member.recipe, name), getattr(Recipe, name))]
    return [_setting(member.recipe, name) for name in chosen]


def _is_set(value: Any, default: Any) -> bool:
    """Return whether a label names the value: not what is left to the method, and not an option that is off."""
    return value not in (None, (), "auto") and not (value is False and default is False)


def _varying(groups: Sequence[Group], within: Callable[[Group], Any]) -> list[str]:
    """Return the fields in which groups with the same value of `within` differ."""
    names = [field.name for field in dataclasses.fields(Recipe) if field.name not in _NAMED_ELSEWHERE]
    seen: dict[tuple[str, Any], set[Any]] = {}
    for member in groups:
        idle = idle_fields(member.recipe, finetuned=member.finetuned)
        for name in (name for name in names if name not in idle):
            seen.setdefault((name, within(member)), set()).add(getattr(member.recipe, name))
    varying = {name for (name, _), values in seen.items() if len(values) > 1}
    return [name for name in names if name in varying]


def _setting(recipe: Recipe, name: str) -> str:
    value = getattr(recipe, name)
    words = name.replace("_", " ")
    if name == "every" and value == "paper":
        return "the paper's period"
    if isinstance(value, bool):
        return words if value else f"no {words}"
    if isinstance(value, tuple):
        listed = ", ".join(map(str, value))
        return listed if name == "options" else f"{words} {listed}"  # options name themselves: settle=0.1
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"


@dataclass(frozen=True)
class Published:
    """A published accuracy and the length of its training."""

    mean: float | None
    """Top-1 in percent; None if the training is reported as not converged."""
    std: float | None
    scale: str = ""
    """Length of the training, such as `300 epochs`; empty if it is stated elsewhere."""

    def __str__(self) -> str:
        """Return the number as text."""
        if self.mean is None:
            return "did not converge"
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


Lookup = Callable[[Recipe, bool], Published | None]
"""Function of a recipe and whether it is fine-tuned that returns the published accuracy, if there is one."""


@dataclass(frozen=True)
class LeaderboardRow:
    """One row of the leaderboard, as text."""

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


def leaderboard(task: Task, published: Lookup | None) -> list[LeaderboardRow]:
    """Return a row for each finished or diverged group, sorted by sparsity, then by accuracy."""
    return [_row(entry, published) for entry in task.entries if entry.group.ended]


def _row(entry: Entry, published: Lookup | None) -> LeaderboardRow:
    group, recipe = entry.group, entry.group.recipe
    return LeaderboardRow(
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
    """Return the time of whole runs; training alone is not timed in runs with fine-tuning."""
    seconds = group.summary("seconds")
    tuned_later = any(outcome.run.recipe.finetune_epochs for outcome in group.outcomes) and not group.finetuned
    return "–" if seconds is None or tuned_later else duration(seconds.mean)


def pending_runs(task: Task) -> list[dict[str, str]]:
    """Return name, label, progress and top1 of the runs of a task that are not finished."""
    return [_pending(run) for run in task.unfinished]


def _pending(run: Run) -> dict[str, str]:
    recipe, done = run.recipe, run.records
    level = f" {recipe.sparsity_title}" if recipe.takes_sparsity else ""
    return {
        "name": str(run.folder),
        "label": f"{method_title(recipe.method)}{level}, seed {recipe.seed}",
        "progress": f"{done[-1]['epoch'] if done else 0} of {recipe.epochs + recipe.finetune_epochs} epochs",
        "top1": f"{done[-1]['top1']:.2f}" if done else "–",
    }


def plus_minus(summary: Summary | None, *, digits: int = 2, scale: float = 1.0) -> str:
    """Return mean ± standard deviation; the mean alone for one seed, a dash for None.

    >>> plus_minus(Summary(69.5, 0.2, 3))
    '69.50 ± 0.20'
    """
    if summary is None:
        return "–"
    mean = f"{scale * summary.mean:,.{digits}f}"
    return mean if summary.std is None else f"{mean} ± {scale * summary.std:,.{digits}f}"


def seeds(n: int) -> str:
    """Return the number of seeds as text."""
    return "1 seed" if n == 1 else f"{n} seeds"


def sentence(items: list[str]) -> str:
    """Return the items joined to the end of a sentence."""
    return f"{'; '.join(items)}." if items else "nothing yet."
