"""Write runs as one self-contained HTML page: tables, interactive figures, recipes and environments."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any, TypedDict

from regrow import __version__
from regrow.report.figures.base import DARK, LIGHT, dash
from regrow.report.render import (
    Section,
    every_choice,
    layered,
    sections,
    vega_lite_version,
    vl_convert,
    write_figures,
)
from regrow.report.tables import (
    Entry,
    LeaderboardRow,
    Lookup,
    Task,
    leaderboard,
    make_tasks,
    pending_runs,
    percent,
)
from regrow.runs.find import Run, find_runs
from regrow.runs.folder import write_whole
from regrow.runs.outcomes import Outcome, group
from regrow.runs.recipe import Recipe, UsageError
from regrow.text import duration


def write_report(
    paths: Iterable[Path | str],
    out: Path | str = "report.html",
    *,
    title: str = "Sparse training",
    note: str = "",
    published: Lookup | None = None,
    figures: Path | str | None = None,
) -> Path:
    """Write the report of the runs in `paths` to `out`, and every figure as SVG, PNG and PDF to `figures`.

    `note` is printed under the title; `published` returns the published accuracy of a recipe.

    >>> write_report(["runs"], "report.html", figures="figures")
    """
    runs = find_runs(paths)
    if not runs:
        raise UsageError("a report needs at least one run: pass run folders, or folders that contain some.")
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
        unfinished=sum(run.result is None for run in runs),
        repeated=[(str(again.folder), str(first.folder)) for again, first in repeated],
        environments=environments.all(),
        version=__version__,
        light=LIGHT,
        dark=DARK,
        style=_asset("page.css"),
        # The content of a script element must not contain its end tag.
        payload=json.dumps(_payload(parts), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
        vega=vl_convert().javascript_bundle(vl_version=vega_lite_version()).replace("</script", "<\\/script"),
        script=_asset("page.js"),
    )


class _Part(TypedDict):
    """What the template shows about a task; a series has its name, color and dashes."""

    task: Task
    opening: dict[str, Any] | None
    rows: list[LeaderboardRow]
    has_top5: bool
    has_published: bool
    pending: list[dict[str, str]]
    series: list[tuple[str, int, str]]
    levels: list[tuple[float, str]]
    layered: list[str]
    sections: list[Section]
    origins: list[dict[str, Any]]


def _part(task: Task, environments: Environments, published: Lookup | None) -> _Part:
    rows = leaderboard(task, published)
    return {
        "task": task,
        "opening": _opening(task),
        "rows": rows,
        "has_top5": any(row.top5 != "–" for row in rows),
        "has_published": any(row.published for row in rows),
        "pending": pending_runs(task),
        "series": [
            (name, index % len(LIGHT.series), " ".join(map(str, dash(index)))) for index, name in enumerate(task.series)
        ],
        "levels": [(level, percent(level)) for level in task.levels],
        "layered": [entry.label for entry in layered(task)],
        "sections": sections(task),
        "origins": origins(task, environments),
    }


def _opening(task: Task) -> dict[str, Any] | None:
    """Return the most accurate entry at the main sparsity in a sentence and three numbers; None without one."""
    finished = [entry for entry in task.entries if entry.group.finished]
    pruned = [entry for entry in finished if entry.group.level is not None and entry.group.level == task.main_level]
    if not pruned or task.main_level is None:
        return None
    best = max(pruned, key=_top1)
    dense = max((entry for entry in finished if entry.group.level is None), key=_top1, default=None)
    beside = f"; the dense network has {_top1(dense):.1f} %" if dense else ""
    compared = f", the most accurate of {len(pruned)} at {percent(task.main_level)}," if len(pruned) > 1 else ""
    sentence = f"{best.label}{compared} has {_top1(best):.1f} % accuracy{beside}."
    change = f"{_top1(best) - _top1(dense):+.1f}".replace("-", "−") if dense else f"{_top1(best):.1f} %"
    against = "points of accuracy against dense" if dense else "accuracy (no dense run)"
    numbers = (
        (change, against),
        (_share(best, "nonzeros", "parameters"), "parameters left"),
        (_share(best, "macs_kept", "macs"), "MACs left"),
    )
    return {"sentence": sentence, "numbers": numbers}


def _top1(entry: Entry) -> float:
    summary = entry.group.summary("top1")
    return summary.mean if summary else float("-inf")


def _share(entry: Entry, kept: str, whole: str) -> str:
    left, total = entry.group.summary(kept), entry.group.summary(whole)
    return f"{100 * left.mean / total.mean:.3g} %" if left and total else "–"


def _payload(parts: list[_Part]) -> dict[str, Any]:
    """Return the data for the page's script."""
    return {
        "themes": {"light": LIGHT.config(), "dark": DARK.config()},
        "figures": {
            f"{part['task'].slug}-{figure.name}": figure.without_legend()
            for part in parts
            for section in part["sections"]
            for figure in section.figures
        },
    }


def _asset(name: str) -> str:
    return files("regrow.report").joinpath("assets", name).read_text(encoding="utf-8")


class Environments:
    """Numbers the distinct environments of runs, in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, run: Run) -> int | None:
        """Return the number of the run's environment; None if it was not recorded."""
        facts = {name: value for name, value in run.environment.items() if name != "command"}
        return self._numbers.setdefault(json.dumps(facts), len(self._numbers) + 1) if facts else None

    def all(self) -> list[dict[str, str]]:
        """Return machine and software of all environments so far, in the order of their numbers."""
        return [_facts(json.loads(text)) for text in self._numbers]


def origins(task: Task, environments: Environments) -> list[dict[str, Any]]:
    """Return the recipes and runs of a task, in the order of its leaderboard."""
    above = [outcome.run.folder.parent for entry in task.entries for outcome in entry.group.outcomes]
    shared = os.path.commonpath(above) if above else ""
    return [
        {
            "label": entry.label,
            "recipe": _short_recipe(entry.group.outcomes[0].run.recipe),
            "sources": [_source(outcome, environments, shared) for outcome in entry.group.outcomes],
        }
        for entry in task.entries
    ]


def _short_recipe(recipe: Recipe) -> str:
    """Return the recipe as TOML: its main fields, and those that differ from their defaults."""
    always = ("data", "model", "method", "sparsity")
    changed = [field.name for field in dataclasses.fields(recipe) if getattr(recipe, field.name) != field.default]
    lines = recipe.to_toml().splitlines()
    return "\n".join(line for line in lines if line.split(" = ")[0] in (*always, *changed))


def _source(outcome: Outcome, environments: Environments, above: str) -> dict[str, Any]:
    """Return a run behind a row of the leaderboard; its environment is a number, from 1."""
    run, top1 = outcome.run, outcome.final.get("top1")
    seconds = (run.result or run.diverged or {}).get("seconds")
    return {
        "folder": os.path.relpath(run.folder, above) if above else str(run.folder),
        "seed": run.recipe.seed,
        "top1": ("★ diverged" if outcome.diverged else "not finished") if top1 is None else f"{top1:.2f}",
        "time": "–" if seconds is None else duration(seconds),
        "environment": environments.number(run),
        "command": shlex.join(map(str, run.environment.get("command") or [])),
    }


def _facts(environment: dict[str, Any]) -> dict[str, str]:
    versions = environment.pop("versions", {})
    facts = {**environment, **versions}
    return {name: str(value) for name, value in facts.items() if value is not None}
