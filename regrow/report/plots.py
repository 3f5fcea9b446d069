"""The pictures of one run, for its folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from regrow.report.collection import sections
from regrow.report.files import Format, write_figures
from regrow.report.outcomes import group
from regrow.report.runs import read_run
from regrow.report.tasks import make_tasks


def plot_run(folder: Path | str, formats: tuple[Format, ...] = ("svg",)) -> list[Path]:
    """Draw the run in `folder` and return the files: accuracy, loss, sparsity, mask dynamics, layers.

    They are written into its folder `plots`. A run that is not finished is drawn as far as it is.

    >>> [path.name for path in plot_run("runs/first")][:2]  # doctest: +SKIP
    ['accuracy.svg', 'loss.svg']
    """
    run = read_run(folder)
    groups, _ = group([run])
    figures = [
        dataclasses.replace(figure, title=f"{figure.title} · {task.title}")
        for task in make_tasks(groups, [run])
        for section in sections(task)
        if section.title in ("Training", "Mask dynamics", "Layers")
        for figure in section.figures
    ]
    return write_figures(figures, run.folder / "plots", formats)
