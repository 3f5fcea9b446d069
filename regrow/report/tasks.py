"""What may be compared with what, and short names: a task is a network on a data set, a series one way to prune it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from regrow import data
from regrow.methods.registry import find_method
from regrow.report.outcomes import Group, idle_fields
from regrow.report.runs import Run
from regrow.train.config import Recipe

# Accuracies are comparable between runs that agree in these fields.
_TASK = ("data", "model", "width", "stem_stride", "growth", "holdout")
# Runs that differ in these are two ways to prune at whatever sparsity: one curve through both would mean nothing.
_WAY = ("scope", "unit", "targets", "include_last")
_NAMED_ELSEWHERE = (*_TASK, "method", "sparsity", "seed", "device", "threads")


@dataclass(frozen=True)
class Entry:
    """A group under its name."""

    group: Group
    details: tuple[str, ...]
    """Settings that tell it from others with its method and sparsity."""
    settings: str
    """Where else its recipe differs from others of the task."""

    @property
    def series(self) -> str:
        """How it was pruned, whatever the sparsity, such as `DPF + FT · lr 0.2`."""
        return " · ".join([self._method, *self.details])

    @property
    def label(self) -> str:
        """The name with the sparsity, such as `DPF + FT 90 % · lr 0.2`."""
        level = "" if self.group.level is None else f" {percent(self.group.level)}"
        return " · ".join([self._method + level, *self.details])

    @property
    def _method(self) -> str:
        return method_title(self.group.recipe.method) + (" + FT" if self.group.finetuned else "")


@dataclass(frozen=True)
class Task:
    """A network on a data set, and what was tried on it."""

    title: str
    slug: str
    """The title as part of a file's name."""
    entries: tuple[Entry, ...]
    """By sparsity, then by accuracy, the best first; unfinished ones last."""
    unfinished: tuple[Run, ...]

    @property
    def series(self) -> list[str]:
        """The series in the order of their colours: dense, then as they are met at the lowest sparsity."""
        return list(dict.fromkeys(entry.series for entry in self.entries))

    @property
    def levels(self) -> list[float]:
        """The sparsities that were asked for."""
        return sorted({entry.group.level for entry in self.entries if entry.group.level is not None})

    @property
    def main_level(self) -> float | None:
        """The sparsity of most runs, of several the highest."""
        runs = Counter[float | None]()
        for entry in self.entries:
            runs[entry.group.level] += 0 if entry.group.finetuned else len(entry.group.outcomes)
        return max(self.levels, key=lambda level: (runs[level], level), default=None)


def make_tasks(groups: Iterable[Group], runs: Iterable[Run]) -> list[Task]:
    """Sort groups and unfinished runs into tasks."""
    found: dict[tuple[Any, ...], tuple[list[Group], list[Run]]] = {}
    for member in groups:
        found.setdefault(_task_key(member.recipe), ([], []))[0].append(member)
    for run in runs:
        if run.result is None and run.diverged is None:
            found.setdefault(_task_key(run.recipe), ([], []))[1].append(run)
    tasks = [_task(members, unfinished) for members, unfinished in found.values()]
    return sorted(tasks, key=lambda task: task.slug)


def percent(share: float) -> str:
    """Return a share as people write it.

    >>> percent(0.9)
    '90 %'
    """
    return f"{100 * share:.6g} %"


def method_title(name: str) -> str:
    """Return a method's name as its class has it.

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
    return " · ".join([recipe.model, *shape, data.info(recipe.data).title, *held_out])


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
        # What differs between sparsities only (a learning rate tuned for each) would tear a curve apart.
        ways = [name for name in _varying(members, lambda _: ()) if name in _WAY]
        naming = [*ways, *(name for name in _varying(members, lambda member: member.level) if name not in ways)]
        rest = [name for name in anywhere if name not in naming]
        for member in members:
            details, settings = _settings(member, naming), _settings(member, rest)
            entries.append(Entry(member, tuple(details), ", ".join(settings)))
    return entries


def _settings(member: Group, names: Sequence[str]) -> list[str]:
    """Return what `member` sets; what it leaves to the method is known by not being named."""
    idle = idle_fields(member.recipe, finetuned=member.finetuned)
    chosen = [name for name in names if name not in idle and getattr(member.recipe, name) not in (None, ())]
    return [_setting(member.recipe, name) for name in chosen]


def _varying(groups: Sequence[Group], within: Callable[[Group], Any]) -> list[str]:
    """Return the fields in which groups differ that `within` says are alike."""
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
    if isinstance(value, bool):
        return words if value else f"no {words}"
    if isinstance(value, tuple):
        return f"{words} {', '.join(map(str, value))}"
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"
