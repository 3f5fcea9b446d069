"""A sweep as one HTML page that needs no network: tables, interactive figures, and where everything comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from regrow.report import leaderboard
from regrow.report.collection import Section, every_choice, layered, sections
from regrow.report.files import vega_lite_version, vl_convert, write_figures
from regrow.report.leaderboard import Lookup
from regrow.report.outcomes import group
from regrow.report.provenance import Environments, Origin, origins
from regrow.report.runs import Run, find_runs
from regrow.report.tasks import Task, make_tasks, percent
from regrow.report.theme import DARK, LIGHT, dash
from regrow.train.files import write_whole
from regrow.version import __version__


@dataclass(frozen=True)
class _Series:
    """A series in the legend of the page."""

    name: str
    colour: int
    dashes: str


@dataclass(frozen=True)
class _Part:
    """What the page shows of one task."""

    task: Task
    rows: list[leaderboard.Row]
    pending: list[leaderboard.Pending]
    sections: list[Section]
    origins: list[Origin]

    @property
    def series(self) -> list[_Series]:
        return [
            _Series(name, index % len(LIGHT.series), " ".join(map(str, dash(index))))
            for index, name in enumerate(self.task.series)
        ]

    @property
    def levels(self) -> list[tuple[float, str]]:
        return [(level, percent(level)) for level in self.task.levels]

    @property
    def layered(self) -> list[str]:
        return [entry.label for entry in layered(self.task)]

    @property
    def has_top5(self) -> bool:
        return any(row.top5 != "–" for row in self.rows)

    @property
    def has_published(self) -> bool:
        return any(row.published for row in self.rows)


def write_report(
    paths: Iterable[Path | str],
    out: Path | str = "report.html",
    *,
    title: str = "Sparse training",
    note: str = "",
    published: Lookup | None = None,
    figures: Path | str | None = None,
) -> Path:
    """Write the report of the runs in `paths` to `out`, and every figure as SVG, PNG and PDF into `figures`.

    `note` is printed under the title; `published` gives the numbers in print to put beside ours.

    >>> write_report(["runs"], "report.html", figures="figures")
    """
    runs = find_runs(paths)
    groups, repeated = group(runs)
    tasks = make_tasks(groups, runs)
    write_whole(Path(out), _page(tasks, runs, repeated, title, note, published).encode())
    if figures is not None:
        write_figures((figure for task in tasks for figure in every_choice(task)), figures)
    return Path(out)


def _page(
    tasks: list[Task],
    runs: list[Run],
    repeated: list[tuple[Run, Run]],
    title: str,
    note: str,
    published: Lookup | None,
) -> str:
    from jinja2 import Environment, StrictUndefined

    environments = Environments()
    parts = [_part(task, environments, published) for task in tasks]
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(_asset("page.html")).render(
        title=title,
        note=note,
        parts=parts,
        runs=len(runs),
        unfinished=sum(run.result is None and run.diverged is None for run in runs),
        repeated=[(str(again.folder), str(first.folder)) for again, first in repeated],
        environments=environments.all(),
        version=__version__,
        light=LIGHT,
        dark=DARK,
        style=_asset("page.css"),
        # Nothing inside a script element may look like its end.
        payload=json.dumps(_payload(parts), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
        vega=vl_convert().javascript_bundle(vl_version=vega_lite_version()).replace("</script", "<\\/script"),
        script=_asset("page.js"),
    )


def _part(task: Task, environments: Environments, published: Lookup | None) -> _Part:
    return _Part(
        task=task,
        rows=leaderboard.rows(task, published),
        pending=leaderboard.pending(task),
        sections=sections(task),
        origins=origins(task, environments),
    )


def _payload(parts: list[_Part]) -> dict[str, Any]:
    """Everything that the page's script draws."""
    return {
        "themes": {"light": LIGHT.config(), "dark": DARK.config()},
        "figures": {
            f"{part.task.slug}-{figure.name}": figure.without_legend()
            for part in parts
            for section in part.sections
            for figure in section.figures
        },
    }


def _asset(name: str) -> str:
    return files("regrow.report").joinpath("assets", name).read_text(encoding="utf-8")
