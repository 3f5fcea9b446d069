"""Numbers, a table and a picture for the README and the first page of the documentation, read from `results/`.

`python -m benchmarks.pages` writes them; `docs/_static/accuracy-light.svg` and `-dark.svg` are the picture.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runner import RESULTS
from regrow.report.figures.base import DARK, LIGHT, Theme, spread
from regrow.report.render import vega_lite_version, vl_convert
from regrow.report.tables import percent
from regrow.runs.outcomes import Summary
from reproduce.comparisons import often
from reproduce.results import ResultStore
from reproduce.scales import Scale, find_scale
from reproduce.tables import DENSE, EVERY_METHOD, Column, printed
from reproduce.views import NOT_RUN, accuracy, table

LEVELS = 0.9, 0.95
RECOMMENDED = (("settle", 0.1),)
JPEG = find_scale("jpeg"), ResultStore.read([RESULTS.parent / "jpeg"])
CPU = find_scale("cpu"), ResultStore.read([RESULTS.parent])
DIGITS = find_scale("digits"), ResultStore.read([RESULTS.parent / "digits"])


@dataclass(frozen=True)
class Number:
    """A large number, the sentence below it, and the command that measured it."""

    value: str
    said: str
    command: str


def recommended(scale: Scale) -> Column:
    """Return DPF with the recommended settings: `every="auto"`, which is every step here, and `settle=0.1`."""
    return Column("dpf", fields=(*often(scale), *RECOMMENDED), name="DPF")


def numbers() -> list[Number]:
    """Return accuracy against dense, times smaller, and times faster."""
    return [_accuracy(), _smaller(), _faster()]


def _accuracy() -> Number:
    dense, pruned = (_top1(*DIGITS, column, LEVELS[0]) for column in (DENSE, recommended(DIGITS[0])))
    longer, other = (_top1(*JPEG, column, LEVELS[0]) for column in (DENSE, recommended(JPEG[0])))
    said = (
        f"accuracy on digits with {percent(LEVELS[0])} of the weights pruned; dense: {dense.mean:.1f} %. "
        f"ResNet-8 after 8 epochs on CIFAR-10 (JPEG q75): {other.mean:.1f} %, dense: {longer.mean:.1f} %"
    )
    return Number(f"{pruned.mean:.1f} %", said, "python -m reproduce claims --scale digits --seeds 3")


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


def _top1(scale: Scale, store: ResultStore, column: Column, level: float) -> Summary:
    found = store.summary(column.cell(scale, (scale.networks(["resnet20"])[0], level)))
    assert found is not None, f"results/ has no run of {column.title} at {percent(level)}"
    return found


def _find(name: str, **wanted: Any) -> Mapping[str, Any]:
    rows = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return next(row for row in rows if all(row.get(key) == value for key, value in wanted.items()))


def markdown() -> str:
    """Return the three numbers and the table, for GitHub and for the documentation."""
    return f"{html()}\n{comparison()}".rstrip() + "\n"


def html() -> str:
    """Return the numbers as a row of three cells."""
    cells = "\n".join(
        f'<td align="center" width="33%"><h2>{each.value}</h2>{_unbroken(each.said)}'
        f"<br><sub><code>{each.command}</code></sub></td>"
        for each in numbers()
    )
    return f'<table class="headline"><tr>\n{cells}\n</tr></table>\n'


def comparison() -> str:
    """Return ResNet-20 on CIFAR-10 beside the paper's numbers; a method has a row once one of its runs is recorded."""
    rows = {column.title: _beside_the_paper(column) for column in EVERY_METHOD}
    lines = [[title, *cells] for title, cells in rows.items() if set(cells[1::2]) != {NOT_RUN}]
    if not lines:
        return ""
    heads = [text for level in LEVELS for text in (f"{percent(level)} pruned: paper", "ours")]
    said = (
        f"Top-1 on the test images, in %. Ours: {CPU[0].about}, seeds in brackets. The paper trains for 300 epochs "
        "(fine-tuning: 60 more), three seeds. `python -m reproduce methods --scale cpu`"
    )
    return f"{table(['', *heads], lines)}\n\n{said}\n"


def _beside_the_paper(column: Column) -> list[str]:
    scale, store = CPU
    cells = {level: column.cell(scale, ("resnet20", level)) for level in LEVELS}
    return [
        text for level, cell in cells.items() for text in (printed("resnet20", column, level), accuracy(store, cell))
    ]


def _unbroken(text: str) -> str:
    """Keep numbers and their units on one line."""
    return text.replace(" %", "\u00a0%").replace(" MB", "\u00a0MB")


def write_pictures(folder: Path) -> None:
    """Draw accuracy against sparsity for ResNet-8 in the colors of both modes."""
    for name, theme in (("light", LIGHT), ("dark", DARK)):
        svg = vl_convert().vegalite_to_svg(_picture(theme), vl_version=vega_lite_version())
        (folder / f"accuracy-{name}.svg").write_text(svg + "\n", encoding="utf-8")


METHODS = (
    Column("incremental", finetuned=True, name="Incremental + fine-tuning"),
    Column("oneshot", finetuned=True, name="One-shot + fine-tuning"),
    Column("rigl", name="RigL"),
    Column("set", name="SET"),
    Column("snip", name="SNIP"),
)


def _picture(theme: Theme) -> dict[str, Any]:
    scale, store = JPEG
    names = [column.title for column in (recommended(scale), *METHODS)]
    rows = [
        _point(column.title, level, _top1(scale, store, column, level))
        for column in (recommended(scale), *METHODS)
        for level in LEVELS
    ]
    dense = _top1(scale, store, DENSE, LEVELS[0]).mean
    lowest = min(row["low"] for row in rows)
    x = {"field": "level", "type": "ordinal", "title": "weights pruned", "axis": {"labelAngle": 0, "grid": False}}
    y = {
        "field": "top1",
        "type": "quantitative",
        "title": "top-1, %",
        "scale": {"domain": [math.floor(lowest), math.ceil(dense)]},
    }
    color = {"field": "name", "type": "nominal", "legend": None, "scale": {"domain": names}}
    ours = {"condition": {"test": "datum.name == 'DPF'", "value": 4}, "value": 2}
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
            "transform": [{"filter": f"datum.level == '{percent(LEVELS[-1])}'"}],
            "mark": {"type": "text", "align": "left", "dx": 10, "fontSize": 12},
            "encoding": {
                "x": x,
                "y": {**y, "field": "label"},
                "text": {"field": "text"},
                "color": color,
                "size": {"condition": {"test": "datum.name == 'DPF'", "value": 14}, "value": 12},
            },
        },
    ]
    return {
        "data": {"values": _apart(rows)},
        "width": 330,
        "height": 300,
        "padding": {"left": 5, "top": 5, "bottom": 5, "right": 125},
        "layer": layers,
        "config": {**theme.config(), "background": None},
    }


def _point(name: str, level: float, top1: Summary) -> dict[str, Any]:
    where = {"name": name, "level": percent(level), "top1": top1.mean, "low": top1.low, "high": top1.high}
    return where | {"text": f"{name} {top1.mean:.1f}"}


def _apart(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the last point of every line a place for its label; the lines are in the order of the labels."""
    last = [row for row in rows if row["level"] == percent(LEVELS[-1])]
    places = spread([row["top1"] for row in last], gap=1.0)
    labels = {row["name"]: place for row, place in zip(last, places, strict=True)}
    return [row | {"label": labels[row["name"]]} for row in rows]
