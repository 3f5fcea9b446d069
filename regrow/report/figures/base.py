"""Common parts of all figures: the class `Figure`, chart helpers, and the colors of both themes."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from regrow.text import optional_module

SHOWN = "indexof(shown, datum.series) >= 0"
"""Vega filter for figures in which series can be hidden."""
AT_LEVEL = "datum.level == null || datum.level == level"
"""Vega filter for figures that show one sparsity; dense networks are always shown."""


HEIGHT = 260
"""Height of the plot in pixels."""
LABEL_WIDTH = 140
"""Maximum width in pixels of the labels next to a plot; the plot shrinks to make room for them."""


@dataclass(frozen=True)
class Figure:
    """A figure; its Vega-Lite specification is drawn in pages and rendered to files."""

    name: str
    title: str
    caption: str
    """What the figure shows and how it was measured."""
    description: str
    """Text alternative with the numbers, for screen readers."""
    spec: dict[str, Any]

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the figure and their current values."""
        return {each["name"]: each["value"] for each in self.spec.get("params", []) if "value" in each}

    def with_parameter(self, name: str, value: Any) -> Figure:
        """Return the figure with another value for a parameter."""
        spec = copy.deepcopy(self.spec)
        for each in spec["params"]:
            if each["name"] == name:
                each["value"] = value
        return Figure(self.name, self.title, self.caption, self.description, spec)

    def without_legend(self) -> dict[str, Any]:
        """Return the specification without a legend, for a page that has its own."""
        spec = copy.deepcopy(self.spec)
        for channel in _by_series(spec):
            channel["legend"] = None
        return spec

    def with_fitted_legend(self, width: int) -> dict[str, Any]:
        """Return the specification with a legend of the drawn series alone, in columns that fit in `width` pixels."""
        spec, parameters = copy.deepcopy(self.spec), self.parameters
        rows = [row for each in spec.get("datasets", {}).values() for row in each]
        levels = (None, parameters["level"]) if "level" in parameters else None
        drawn = {row.get("series") for row in rows if levels is None or row["level"] in levels}
        for channel in _by_series(spec):
            if channel.get("legend"):
                names = [name for name in channel["scale"]["domain"] if name in drawn]
                columns = width // (7 * max(map(len, names), default=0) + 40)
                channel["legend"] |= {"values": names, "columns": min(max(columns, 1), 3)}
        return spec


def _by_series(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the channels that encode the series."""
    for layer in (spec, *spec.get("layer", [])):
        for channel in layer.get("encoding", {}).values():
            if isinstance(channel, dict) and channel.get("field") == "series":
                yield channel


def altair() -> Any:
    """Return the altair module, which is an optional dependency."""
    return optional_module("altair", "figures need altair and vl-convert-python", extra="report")


def new_chart() -> Any:
    """Return an empty chart; `finish` adds its data.

    All charts have the same data object: layers with data of their own ignore the filters of the whole chart.
    """
    return altair().Chart(_named_rows())


@cache
def _named_rows() -> Any:
    return altair().NamedData(name="rows")


def finish(chart: Any, rows: Sequence[Mapping[str, Any]], *, height: int = HEIGHT) -> dict[str, Any]:
    """Return the specification of `chart` with its data, as wide as its container; the theme styles it."""
    spec: dict[str, Any] = chart.properties(width="container", height=height).to_dict()
    spec["datasets"] = {"rows": list(rows)}
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    del spec["config"]
    return spec


def series_scales(names: Sequence[str], *, lines: bool) -> tuple[Any, Any, Any]:
    """Return the encodings by color, dash and shape, which are the same for a series in all figures.

    The legend shows `lines`, or the shapes of points.
    """
    alt, names = altair(), list(names)
    symbols = {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolSize": 300} if lines else {}
    legend = alt.Legend(title=None, orient="bottom", columns=3, symbolOpacity=1, **symbols) if names[1:] else None
    dashes, shapes = ([style(index) for index in range(len(names))] for style in (dash, shape))
    return (
        alt.Color("series:N", scale=alt.Scale(domain=names), legend=legend),
        alt.StrokeDash("series:N", scale=alt.Scale(domain=names, range=dashes), legend=legend),
        alt.Shape("series:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
    )


def zoom() -> Any:
    """Return the selection that pans by dragging and zooms with Ctrl and the wheel; the wheel alone scrolls."""
    mouse = "[event.pointerType === 'mouse' || !event.pointerType]"
    return altair().selection_interval(
        bind="scales",
        zoom="wheel![event.ctrlKey || event.metaKey || event.shiftKey]",
        translate=f"[pointerdown{mouse}, window:pointerup] > window:pointermove!",
    )


def limits(values: Sequence[float], *, lone: bool = False) -> tuple[float, float]:
    """Return axis limits for `values`; a few that are far from all others are left outside, for `outliers` to mark.

    With `lone`, this includes the lowest of few values, if it would leave the others less than a tenth of the axis.

    >>> limits([*range(90, 100), 10.0])
    (89.55, 99.45)
    """
    inside = list(values)
    if len(inside) >= 10:
        low, _, high = statistics.quantiles(inside, n=4)
        reach = 3 * max(high - low, 1e-9)
        near = [value for value in inside if low - reach <= value <= high + reach]
        # If many values are far from the rest, they matter, and the axis includes them.
        inside = near if len(near) >= 0.9 * len(inside) else inside
    elif lone and len(inside) > 2:
        first, *others = sorted(inside)
        # Values of similar size, such as 90 and 95 %, are compared on one axis.
        if 2 * first < others[0] and others[-1] - others[0] < 0.1 * (others[-1] - first):
            inside = others
    margin = 0.05 * (max(inside) - min(inside)) or 0.05 * abs(max(inside)) or 1.0
    return compact(min(inside) - margin), compact(max(inside) + margin)


def outliers(base: Any, title: str, low: float, high: float, **encoding: Any) -> Any:
    """Return triangles at the edge of the plot for the rows of `base` whose `mean` is outside the limits.

    `title` is that of the axis.
    """
    alt = altair()
    shape = alt.condition(f"datum.mean < {low}", alt.value("triangle-down"), alt.value("triangle-up"))
    return (
        base.transform_filter(f"datum.mean < {low} || datum.mean > {high}")
        .transform_calculate(edge=f"clamp(datum.mean, {low}, {high})")
        .mark_point(filled=True, size=60, opacity=1, clip=False, aria=False)
        .encode(y=alt.Y("edge:Q", title=title), shape=shape, **encoding)
    )


OUTSIDE = " Triangles at the edge mark values outside the axis; point at them for the number."
_LABELS = 16  # more would not fit beside a figure
_LABEL_HEIGHT = 15


def label_places(values: Mapping[str, float], low: float, high: float, *, height: int = HEIGHT) -> dict[str, float]:
    """Return the places of labels for lines that end at `values`, in units of the axis; none if they do not fit."""
    if len(values) > _LABELS:
        return {}
    ends = [min(max(value, low), high) for value in values.values()]
    gap = _LABEL_HEIGHT * (high - low) / height
    places = spread(ends, gap, low + gap / 2, high - gap / 2)
    return {name: compact(place) for name, place in zip(values, places, strict=True)}


def spread(values: Sequence[float], gap: float, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """Return positions near `values` from `low` to `high`, in the same order and at least `gap` apart, for labels.

    >>> spread([1.0, 1.0, 9.0], 2.0, 0.5, 9.5)
    [0.5, 2.5, 9.0]
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    groups: list[tuple[float, list[int]]] = []  # centers, and whose labels stand around them
    for index in order:
        center, members = values[index], [index]
        while groups and center - groups[-1][0] < gap * (len(members) + len(groups[-1][1])) / 2:
            _, before = groups.pop()
            members = [*before, *members]
            center = sum(values[each] for each in members) / len(members)
        groups.append((center, members))
    placed = [0.0] * len(values)
    for center, members in groups:
        for place, index in enumerate(members):
            placed[index] = center + gap * (place - (len(members) - 1) / 2)
    for below, index in enumerate(order):
        above = len(order) - 1 - below
        placed[index] = min(max(placed[index], low + gap * below), high - gap * above)
    return placed


def compact(number: float) -> float:
    """Return `number` rounded to five significant digits, which is more than a figure can show."""
    return float(f"{number:.5g}")


_FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colors of the light or the dark mode; those of `series` have a contrast of at least 3 (WCAG 1.4.11)."""

    background: str
    surface: str
    text: str
    muted: str
    line: str
    accent: str
    series: tuple[str, ...]

    def config(self) -> dict[str, Any]:
        """Return the Vega-Lite configuration."""
        labels = {"labelColor": self.muted, "titleColor": self.text, "labelFontSize": 12, "titleFontSize": 12}
        return {
            "background": self.surface,
            "font": _FONT,
            "view": {"stroke": None},
            "axis": labels
            | {"gridColor": self.line, "domainColor": self.line, "tickColor": self.line, "titleFontWeight": "normal"},
            "legend": labels | {"labelLimit": 320, "titleFontWeight": "normal"},
            "rule": {"color": self.text},
            "title": {"color": self.text, "anchor": "start", "fontSize": 14},
            "range": {"category": list(self.series), "heatmap": {"scheme": "viridis"}},
        }


LIGHT = Theme(
    background="#f5f6f8",
    surface="#ffffff",
    text="#1a1d21",
    muted="#565e69",
    line="#dfe3e8",
    accent="#0b5cad",
    series=(
        "#1f6fb4",
        "#c8560b",
        "#2a8540",
        "#7b4bb3",
        "#c02942",
        "#0f8080",
        "#8a5a33",
        "#c0408f",
        "#76761a",
        "#5f6b7a",
    ),
)
DARK = Theme(
    background="#0f1216",
    surface="#171b21",
    text="#e8eaed",
    muted="#a4adb9",
    line="#2f3640",
    accent="#7db8f5",
    series=(
        "#6cb2f5",
        "#ff9d57",
        "#6fd08c",
        "#c39bf2",
        "#ff7f8e",
        "#5ed0cc",
        "#d3a683",
        "#f58fcf",
        "#cfca5a",
        "#aab6c6",
    ),
)

GONE = "#e0357f"
"""Color of a layer that is pruned completely; it differs from all colors of the scale in both modes."""

# When the colors are used up, lines get dashes and points get another shape.
DASHES = ((1, 0), (6, 3), (2, 2), (8, 2, 2, 2))
SHAPES = ("circle", "square", "triangle-up", "diamond")


def dash(index: int) -> tuple[int, ...]:
    """Return the dash pattern of the series with this index."""
    return DASHES[index // len(LIGHT.series) % len(DASHES)]


def shape(index: int) -> str:
    """Return the point shape of the series with this index; consecutive series differ in shape."""
    return SHAPES[index % len(SHAPES)]
