"""Numbers, a table and a picture for the README and the first page of the documentation, read from `results/`.

`python -m benchmarks.pages` writes them; `docs/_static/accuracy-light.svg` and `-dark.svg` are the picture.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runner import RESULTS
from regrow.report.figures.base import DARK, LIGHT, Theme, spread
from regrow.report.render import vega_lite_version, vl_convert
from regrow.report.tables import percent
from regrow.runs.outcomes import Summary
from reproduce.results import Cell, ResultStore
from reproduce.scales import find_scale
from reproduce.tables import (
    DENSE,
    DPF,
    DPF_TUNED,
    EVERY_METHOD,
    INCREMENTAL_TUNED,
    ONESHOT,
    PROTOCOL,
    SOFT,
    Column,
    machines,
    periods,
    printed,
    updates,
)
from reproduce.views import NOT_RUN, accuracy, table

LEVELS = 0.9, 0.95
CPU, PAPER = find_scale("cpu"), find_scale("paper")
NEEDED = (DPF_TUNED, DPF, INCREMENTAL_TUNED, ONESHOT)
"""Methods of the picture, which shows the levels at which all of them are recorded."""
MORE = (Column("rigl"), Column("granet"), Column("acdc"), Column("sparse-momentum"), SOFT)
"""Methods that it shows once they are recorded at these levels."""


@dataclass(frozen=True)
class Number:
    """A large number, the sentence below it, and the command that measured it."""

    value: str
    said: str
    command: str


def records() -> ResultStore:
    """Return the trainings of ResNet-20 on CIFAR-10."""
    return ResultStore.read([RESULTS.parent])


def numbers(store: ResultStore) -> list[Number]:
    """Return accuracy against dense, times smaller, and times faster."""
    return [*_accuracy(store), _smaller(), _faster()]


def levels(store: ResultStore) -> list[float]:
    """Return the sparsities at which all methods of the picture are recorded."""
    return [level for level in LEVELS if all(_top1(store, column, level) for column in (DENSE, *NEEDED))]


def _accuracy(store: ResultStore) -> list[Number]:
    """Return the accuracy with the paper's protocol once that is recorded, and else that of the short trainings."""
    dense, dpf = PROTOCOL
    at = "resnet20", LEVELS[0]
    if found := store.summary(dpf.cell(PAPER, at)):
        ours = store.summary(dense.cell(PAPER, at))
        whole = f"{ours.mean:.1f} %" if ours else f"{printed('resnet20', dense, LEVELS[0])} % in the paper"
        said = (
            f"accuracy with {percent(LEVELS[0])} of the weights pruned, without fine-tuning; the paper: "
            f"{printed('resnet20', dpf, LEVELS[0])} %. Dense: {whole}. ResNet-20, CIFAR-10, the paper's 300 epochs, "
            f"{'one seed' if found.n == 1 else f'{found.n} seeds'}"
        )
        return [Number(f"{found.mean:.1f} %", said, "regrow train cifar-resnet20")]
    for level in levels(store)[:1]:
        dense_top1, pruned = (_top1(store, column, level) for column in (DENSE, DPF_TUNED))
        said = (
            f"accuracy with {percent(level)} of the weights pruned, after fine-tuning; dense: {dense_top1.mean:.1f} %. "
            f"{CPU.about}"
        )
        return [Number(f"{pruned.mean:.1f} %", said, "python -m reproduce methods --scale cpu")]
    return []


def _smaller() -> Number:
    row = _find("pack", network="resnet50", sparsity=LEVELS[1], dtype="fp32")
    said = (
        f"smaller file, without loss: ResNet-50 at {percent(LEVELS[1])}, "
        f"{row['dense'] / 1e6:.0f} MB to {row['packed'] / 1e6:.1f} MB"
    )
    return Number(f"{row['dense'] / row['packed']:.0f} ×", said, "python -m benchmarks.pack")


def _faster() -> Number:
    row = _find("engine-avx2", part="speed", network="resnet50", batch=1, sparsity=LEVELS[1])
    said = (
        f"faster than the best dense runtime on one CPU core: ResNet-50 at {percent(LEVELS[1])}, "
        "one image, synthetic masks, AVX2"
    )
    return Number(f"{row['times faster']:.1f} ×", said, "python -m benchmarks.engine --name engine-avx2")


def _top1(store: ResultStore, column: Column, level: float) -> Summary | None:
    return store.summary(column.cell(CPU, ("resnet20", level)))


def _find(name: str, **wanted: Any) -> Mapping[str, Any]:
    rows = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return next(row for row in rows if all(row.get(key) == value for key, value in wanted.items()))


def readme() -> str:
    """Return the numbers, the table and the picture for GitHub."""
    store = records()
    shown = (
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="docs/_static/accuracy-dark.svg">\n'
        f'  <img src="docs/_static/accuracy-light.svg" width="560" alt="{html.escape(alt(store))}">\n</picture>\n'
    )
    return _markdown(store, shown)


def first_page() -> str:
    """Return the same for the first page of the documentation."""
    store = records()
    shown = [
        f"```{{image}} _static/accuracy-{mode}.svg\n:alt: {alt(store)}\n:class: only-{mode}\n:width: 560px\n```\n"
        for mode in ("light", "dark")
    ]
    return _markdown(store, "\n".join(shown))


def _markdown(store: ResultStore, picture: str) -> str:
    drawn = [picture, caption(store)] if levels(store) else []
    return "\n".join(filter(None, [cells(store), comparison(store), *drawn]))


def cells(store: ResultStore) -> str:
    """Return the numbers as a row of cells."""
    found = numbers(store)
    texts = "\n".join(
        f'<td align="center" width="{100 // len(found)}%"><h2>{each.value}</h2>{_unbroken(each.said)}'
        f"<br><sub><code>{each.command}</code></sub></td>"
        for each in found
    )
    return f'<table class="headline"><tr>\n{texts}\n</tr></table>\n'


def comparison(store: ResultStore) -> str:
    """Return ResNet-20 on CIFAR-10 beside the paper's numbers; a method has a row once one of its runs is recorded."""
    columns = [(scale, column) for scale, several in ((PAPER, PROTOCOL), (CPU, EVERY_METHOD)) for column in several]
    lines, runs = [], {}
    for scale, column in columns:
        found = [column.cell(scale, ("resnet20", level)) for level in LEVELS]
        ours = [accuracy(store, cell) for cell in found]
        if set(ours) != {NOT_RUN}:
            papers = [printed("resnet20", column, level) for level in LEVELS]
            both = (text for pair in zip(papers, ours, strict=True) for text in pair)
            lines.append([column.title, *both, _counts(store, found)])
            runs[column.title] = found
    if not lines:
        return ""
    heads = [text for level in LEVELS for text in (f"{percent(level)} pruned: paper", "ours")] + ["mask updates, ours"]
    ours = "Ours, except the rows that say 300 epochs" if any(each.title in runs for each in PROTOCOL) else "Ours"
    said = (
        f"Top-1 on the test images, in %. {ours}: {CPU.about}, seeds in brackets. "
        "The paper trains for 300 epochs (fine-tuning: 60 more), three seeds. "
        "`python -m reproduce methods --scale cpu`"
    )
    notes = " ".join(filter(None, [periods(CPU, runs), machines(store, runs)]))
    return f"{table(['', *heads], lines)}\n\n{said}\n\n{notes}\n"


def _counts(store: ResultStore, cells: Sequence[Cell]) -> str:
    """Return how often a method updated its mask in a training."""
    found = {count for cell in cells if (count := updates(store, cell)) is not None}
    return ", ".join(f"{count:,}" for count in sorted(found))


def _unbroken(text: str) -> str:
    """Keep numbers and their units on one line."""
    return text.replace(" %", "\u00a0%").replace(" MB", "\u00a0MB")


def alt(store: ResultStore) -> str:
    """Return what the picture shows, in words."""
    said = "; ".join(
        f"{percent(level)} of the weights pruned: {', '.join(row['text'] for row in _rows(store, [level]))}"
        for level in levels(store)
    )
    return f"Top-1 accuracy of ResNet-20 on CIFAR-10. {said}. Dense: {_dense(store):.1f}."


def caption(store: ResultStore) -> str:
    """Return the line below the picture."""
    found = [store.summary(column.cell(CPU, ("resnet20", level))) for column in NEEDED for level in levels(store)]
    several = any(top1 and top1.n > 1 for top1 in found)
    seeds = "bars are the standard deviation over seeds, where there are several" if several else "one seed"
    return f"{CPU.about}; {seeds}. These trainings are far shorter than the paper's.\n"


def write_pictures(folder: Path) -> None:
    """Draw accuracy against sparsity for ResNet-20 in the colors of both modes."""
    store = records()
    if not levels(store):
        return
    for name, theme in (("light", LIGHT), ("dark", DARK)):
        svg = vl_convert().vegalite_to_svg(_picture(store, theme), vl_version=vega_lite_version())
        (folder / f"accuracy-{name}.svg").write_text(svg + "\n", encoding="utf-8")


def _rows(store: ResultStore, shown: Sequence[float]) -> list[dict[str, Any]]:
    """Return the points of the picture, best at the highest sparsity first."""
    known = levels(store)
    columns = [column for column in (*NEEDED, *MORE) if all(_top1(store, column, level) for level in known)]
    ranked = sorted(columns, key=lambda column: -_top1(store, column, known[-1]).mean)
    return [_point(column.title, level, _top1(store, column, level)) for column in ranked for level in shown]


def _dense(store: ResultStore) -> float:
    found = _top1(store, DENSE, LEVELS[0])
    return found.mean


def _picture(store: ResultStore, theme: Theme) -> dict[str, Any]:
    shown = levels(store)
    rows, dense = _rows(store, shown), _dense(store)
    names = list(dict.fromkeys(row["name"] for row in rows))
    lowest = min(row["low"] for row in rows)
    x = {"field": "level", "type": "ordinal", "title": "weights pruned", "axis": {"labelAngle": 0, "grid": False}}
    y = {
        "field": "top1",
        "type": "quantitative",
        "title": "top-1, %",
        "scale": {"domain": [math.floor(lowest), math.ceil(dense)]},
    }
    color = {"field": "name", "type": "nominal", "legend": None, "scale": {"domain": names}}
    ours = {"condition": {"test": "datum.name == 'DPF + FT'", "value": 4}, "value": 2}
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [{"top1": dense}]},
            "mark": {"type": "rule", "strokeDash": [5, 4], "color": theme.muted},
            "encoding": {"y": y},
        },
        {
            "data": {"values": [{"top1": dense, "text": f"dense {dense:.1f}"}]},
            "mark": {"type": "text", "align": "left", "dx": 6, "x": "width", "fontSize": 12, "color": theme.muted},
            "encoding": {"y": y, "text": {"field": "text"}},
        },
        {"mark": {"type": "line"}, "encoding": {"x": x, "y": y, "color": color, "strokeWidth": ours}},
        {
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": color},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": color},
        },
        {
            "transform": [{"filter": f"datum.level == '{percent(shown[-1])}'"}],
            "mark": {"type": "text", "align": "left", "dx": 10, "fontSize": 12},
            "encoding": {
                "x": x,
                "y": {**y, "field": "label"},
                "text": {"field": "text"},
                "color": color,
                "size": {"condition": {"test": "datum.name == 'DPF + FT'", "value": 14}, "value": 12},
            },
        },
    ]
    return {
        "data": {"values": _apart(rows, percent(shown[-1]))},
        "width": 330,
        "height": 300,
        "padding": {"left": 5, "top": 5, "bottom": 5, "right": 125},
        "layer": layers,
        "config": {**theme.config(), "background": None},
    }


def _point(name: str, level: float, top1: Summary) -> dict[str, Any]:
    where = {"name": name, "level": percent(level), "top1": top1.mean, "low": top1.low, "high": top1.high}
    return where | {"text": f"{name} {top1.mean:.1f}"}


def _apart(rows: list[dict[str, Any]], level: str) -> list[dict[str, Any]]:
    """Give the last point of every line a place for its label; the lines are in the order of the labels."""
    last = [row for row in rows if row["level"] == level]
    places = spread([row["top1"] for row in last], gap=1.0)
    labels = {row["name"]: place for row, place in zip(last, places, strict=True)}
    return [row | {"label": labels[row["name"]]} for row in rows]
