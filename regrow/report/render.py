"""Choose the figures of a report, and render them to files without a browser."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from regrow.report.figures.base import LIGHT, Figure, altair
from regrow.report.figures.costs import COSTS, speed_figure, tradeoff_figure
from regrow.report.figures.curves import DYNAMICS, TRAINING, curve_figure, layers_figure
from regrow.report.tables import Entry, Task, make_tasks, percent
from regrow.runs.find import read_run
from regrow.runs.folder import write_whole
from regrow.runs.outcomes import group
from regrow.text import optional_module

Format = Literal["svg", "png", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)

_WIDTH = 460
_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"  # vl-convert brings the first: text is as wide as measured
_PIXELS_PER_INCH = 220


def write_figures(figures: Iterable[Figure], folder: Path | str, formats: Iterable[Format] = FORMATS) -> list[Path]:
    """Write every figure in every format as `folder/name.format`, and return the paths."""
    formats, paths = tuple(formats), []
    for figure in figures:
        svg = to_svg(figure)
        for form in formats:
            path = Path(folder) / f"{figure.name}.{form}"
            write_whole(path, _convert(svg, form))
            paths.append(path)
    return paths


def to_svg(figure: Figure) -> str:
    """Return the figure as SVG on a white background, with title and legend."""
    spec = {
        **figure.with_fitted_legend(_WIDTH),
        "width": _WIDTH,
        "title": figure.title,
        "config": LIGHT.config() | {"font": _FONT},
    }
    svg: str = vl_convert().vegalite_to_svg(spec, vl_version=vega_lite_version())
    return svg


def can_draw() -> bool:
    """Return whether the packages for figures are installed, without importing them."""
    return all(find_spec(package) for package in ("altair", "vl_convert"))


def vl_convert() -> Any:
    """Return the vl_convert module, which is an optional dependency."""
    return optional_module("vl_convert", "figures need altair and vl-convert-python", extra="report")


def vega_lite_version() -> str:
    """Return altair's version of Vega-Lite, in vl-convert's notation."""
    major, minor, *_ = str(altair().SCHEMA_VERSION).removeprefix("v").split(".")
    return f"{major}.{minor}"


def _convert(svg: str, form: Format) -> bytes:
    match form:
        case "svg":
            return svg.encode()
        case "png":
            png: bytes = vl_convert().svg_to_png(svg, ppi=_PIXELS_PER_INCH)
            return png
        case "pdf":
            pdf: bytes = vl_convert().svg_to_pdf(svg)
            return pdf


@dataclass(frozen=True)
class Section:
    """Figures under a heading; those with `choices` are alternatives, of which a page shows one at a time."""

    title: str
    figures: tuple[Figure, ...]
    choices: tuple[str, ...] = ()
    """Name of each alternative in the list of x axes."""


def sections(task: Task) -> list[Section]:
    """Return the figures for which the runs of `task` have data."""
    level, entries = task.main_level, task.entries
    tradeoffs = {cost.choice: figure for cost in COSTS if (figure := tradeoff_figure(cost, task))}
    alternatives = [Section("Accuracy and size", tuple(tradeoffs.values()), tuple(tradeoffs))] if tradeoffs else []
    candidates = {
        "Training": [curve_figure(curve, entries, task.series, level) for curve in TRAINING],
        "Mask dynamics": [curve_figure(curve, entries, task.series, level) for curve in DYNAMICS],
        "Layers": [layers_figure(entries, level)],
        "Overhead": [speed_figure(task)],
    }
    found = {title: tuple(figure for figure in figures if figure) for title, figures in candidates.items()}
    return [*alternatives, *(Section(title, figures) for title, figures in found.items() if figures)]


def every_choice(task: Task) -> Iterator[Figure]:
    """Yield the figures for files: one for every sparsity, and for every run if the figure shows only one."""
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
    """Return the entries for the figure of the layers."""
    return [entry for entry in task.entries if entry.group.level is not None and not entry.group.finetuned]


def plot_run(folder: Path | str, formats: tuple[Format, ...] = ("svg",)) -> list[Path]:
    """Plot the run in `folder` and return the files: accuracy, loss, sparsity, mask dynamics, layers.

    They are written to its subfolder `plots`. An unfinished run is plotted up to its last epoch.

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
