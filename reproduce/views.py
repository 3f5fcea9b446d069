"""The view of an experiment, made from finished runs: Markdown, JSON and figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regrow.report.figures.base import Figure
from regrow.report.figures.costs import COSTS, speed_figure, tradeoff_figure
from regrow.report.figures.curves import DYNAMICS, curve_figure, layers_figure
from regrow.report.render import can_draw, write_figures
from regrow.report.tables import Task, make_tasks
from regrow.runs.folder import write_whole
from regrow.runs.outcomes import Summary, group
from reproduce.results import Cell, ResultStore

NOT_RUN = "not run"


Content = tuple[str, Sequence[Mapping[str, Any]], tuple[Figure, ...]]
"""Text, rows and figures of a view, which the experiment gives its name and title."""


@dataclass(frozen=True)
class View:
    """The result of an experiment."""

    name: str
    title: str
    text: str
    """Markdown, without the title."""
    rows: Sequence[Mapping[str, Any]]
    """The numbers in the text, for JSON."""
    figures: tuple[Figure, ...] = ()

    def markdown(self) -> str:
        """Return the page."""
        pictures = [f"![{figure.title}]({figure.name}.svg)\n\n{figure.caption}" for figure in self.figures]
        return "\n\n".join([f"# {self.title}", self.text.strip(), *pictures]) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write the page, its numbers and its figures to `folder`, and return the files."""
        drawn = replace(self, figures=self.figures if can_draw() else ())
        page, numbers = folder / f"{self.name}.md", folder / f"{self.name}.json"
        write_whole(page, drawn.markdown().encode())
        write_whole(numbers, (json.dumps(list(self.rows), indent=1, ensure_ascii=False) + "\n").encode())
        return [page, numbers, *write_figures(drawn.figures, folder, ("svg", "png"))]


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *rows])


def number(summary: Summary | None, *, diverged: int = 0, digits: int = 2) -> str:
    """Return mean ± standard deviation and the number of seeds, or "not run".

    The star is the paper's mark for trainings that do not converge.

    >>> number(Summary(69.5, 0.2, 3)), number(None, diverged=2), number(Summary(69.5, None, 1), diverged=1)
    ('69.50 ± 0.20 (3)', '★ diverged (2)', '69.50 (1, ★ 1 more diverged)')
    """
    if summary is None:
        return f"★ diverged ({diverged})" if diverged else NOT_RUN
    spread = "" if summary.std is None else f" ± {summary.std:.{digits}f}"
    more = f", ★ {diverged} more diverged" if diverged else ""
    return f"{summary.mean:.{digits}f}{spread} ({summary.n}{more})"


def accuracy(store: ResultStore, cell: Cell) -> str:
    """Return the accuracy of a cell as text."""
    return number(store.summary(cell), diverged=store.diverged(cell))


def as_row(summary: Summary | None, diverged: int = 0) -> dict[str, Any]:
    """Return the entries of a JSON row."""
    starred = {"diverged": diverged} if diverged else {}
    if summary is None:
        return {"mean": None, "std": None, "seeds": 0, **starred}
    return {"mean": summary.mean, "std": summary.std, "seeds": summary.n, **starred}


def tasks_of(store: ResultStore, cells: Iterable[Cell]) -> list[Task]:
    """Return the runs behind `cells` as tasks for the report's figures; empty if figures cannot be drawn."""
    if not can_draw():
        return []
    runs = store.runs(cells)
    groups, _ = group(runs)
    return make_tasks(groups, runs)


def tradeoffs(name: str, tasks: Iterable[Task]) -> tuple[Figure, ...]:
    """Return accuracy against sparsity, parameters and MACs."""
    return _named(name, [(task, tradeoff_figure(cost, task)) for task in tasks for cost in COSTS])


def dynamics(name: str, tasks: Iterable[Task]) -> tuple[Figure, ...]:
    """Return δ, flips, overlap and last changes of the masks, one figure for each sparsity."""
    figures = []
    for task in tasks:
        entries = [entry for entry in task.entries if not entry.group.finetuned]  # whose masks do not move
        series = list(dict.fromkeys(entry.series for entry in entries))
        figures += [(task, curve_figure(curve, entries, series, level)) for level in task.levels for curve in DYNAMICS]
    return _named(name, figures, levels=True)


def layers(name: str, tasks: Iterable[Task]) -> tuple[Figure, ...]:
    """Return the sparsity of every layer over training, one figure for each sparsity."""
    figures = []
    for task in tasks:
        for level in task.levels:
            entries = [entry for entry in task.entries if entry.group.level == level]
            figures.append((task, layers_figure(entries, level)))
    return _named(name, figures)


def speeds(name: str, tasks: Iterable[Task]) -> tuple[Figure, ...]:
    """Return images per second."""
    return _named(name, [(task, speed_figure(task)) for task in tasks])


def _named(name: str, figures: Iterable[tuple[Task, Figure | None]], *, levels: bool = False) -> tuple[Figure, ...]:
    """Make the names of figures unique, and add the network to their titles."""
    named: dict[str, Figure] = {}
    for task, figure in figures:
        if figure is None:
            continue
        level = figure.parameters.get("level") if levels else None
        at = "" if level is None else f" at {100 * level:g} %"
        base = f"{name}-{figure.name}" + ("" if level is None else f"-{100 * level:g}")
        unique = base if base not in named else f"{base}-{sum(each.startswith(base) for each in named) + 1}"
        named[unique] = replace(figure, name=unique, title=f"{figure.title}{at} · {task.title}")
    return tuple(named.values())
