"""All figures of a task, in the order in which a report tells its story."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from regrow.report.figures.curves import DYNAMICS, TRAINING, curve_figure
from regrow.report.figures.figure import Figure
from regrow.report.figures.layers import layers_figure
from regrow.report.figures.speed import speed_figure
from regrow.report.figures.tradeoff import COSTS, tradeoff_figure
from regrow.report.tasks import Entry, Task, percent


@dataclass(frozen=True)
class Section:
    """Figures under a heading."""

    title: str
    figures: tuple[Figure, ...]


def sections(task: Task) -> list[Section]:
    """Return the figures that the runs of `task` have data for."""
    level, entries = task.main_level, task.entries
    candidates = {
        "Accuracy and size": [tradeoff_figure(cost, task) for cost in COSTS],
        "Training": [curve_figure(curve, entries, task.series, level) for curve in TRAINING],
        "Mask dynamics": [curve_figure(curve, entries, task.series, level) for curve in DYNAMICS],
        "Layers": [layers_figure(entries, level)],
        "Overhead": [speed_figure(task)],
    }
    found = {title: tuple(figure for figure in figures if figure) for title, figures in candidates.items()}
    return [Section(title, figures) for title, figures in found.items() if figures]


def every_choice(task: Task) -> Iterator[Figure]:
    """Return the figures as they go into files: one for every sparsity, and for every run where one is shown."""
    for section in sections(task):
        for figure in section.figures:
            for name, title, chosen in _choices(task, figure):
                yield dataclasses.replace(chosen, name=f"{task.slug}-{name}", title=title)


def _choices(task: Task, figure: Figure) -> Iterator[tuple[str, str, Figure]]:
    if "level" in figure.parameters and task.levels:
        for level in task.levels:
            at = f"{figure.title}, {percent(level)}"
            yield f"{figure.name}-{100 * level:g}", at, figure.with_parameter("level", level)
    elif "run" in figure.parameters:
        for index, entry in enumerate(layered(task), 1):
            chosen = figure.with_parameter("run", entry.label)
            yield f"{figure.name}-{index}", f"{figure.title}: {entry.label}", chosen
    else:
        yield figure.name, figure.title, figure


def layered(task: Task) -> list[Entry]:
    """Return the entries that the figure of the layers can show."""
    return [entry for entry in task.entries if entry.group.level is not None and not entry.group.finetuned]
