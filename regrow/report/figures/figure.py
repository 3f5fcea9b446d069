"""What every figure has: a name, words for those who cannot see it, and a Vega-Lite specification."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.report.theme import dash, shape

SHOWN = "indexof(shown, datum.series) >= 0"
"""The filter of a figure from which series can be taken out."""
AT_LEVEL = "datum.level == null || datum.level == level"
"""The filter of a figure that shows one sparsity; what is dense belongs to every one."""


@dataclass(frozen=True)
class Figure:
    """A figure: the same specification is drawn in pages and turned into files."""

    name: str
    title: str
    caption: str
    """What one sees, and how it was measured."""
    description: str
    """The figure in words, numbers included."""
    spec: dict[str, Any]

    @property
    def parameters(self) -> dict[str, Any]:
        """What can be chosen in the figure, with the present choice."""
        return {each["name"]: each["value"] for each in self.spec.get("params", []) if "value" in each}

    def with_parameter(self, name: str, value: Any) -> Figure:
        """Return the figure with another choice."""
        spec = copy.deepcopy(self.spec)
        for each in spec["params"]:
            if each["name"] == name:
                each["value"] = value
        return Figure(self.name, self.title, self.caption, self.description, spec)

    def without_legend(self) -> dict[str, Any]:
        """Return the specification for a page that has a legend of its own."""
        spec = copy.deepcopy(self.spec)
        for layer in spec.get("layer", []):
            for channel in layer["encoding"].values():
                if isinstance(channel, dict) and channel.get("field") == "series":
                    channel["legend"] = None
        return spec


def altair() -> Any:
    """Return the altair module, which is an optional dependency."""
    try:
        import altair
    except ImportError:
        raise ImportError('figures need altair and vl-convert-python: pip install "regrow[report]"') from None
    return altair


def new_chart() -> Any:
    """Return an empty chart of the data that `finish` puts in."""
    return altair().Chart(altair().NamedData(name="rows"))


def finish(chart: Any, rows: Sequence[Mapping[str, Any]], *, height: int = 260) -> dict[str, Any]:
    """Return the specification of `chart` with its data, as wide as what it stands in; its looks are the theme's."""
    spec: dict[str, Any] = chart.properties(width="container", height=height).to_dict()
    spec["datasets"] = {"rows": list(rows)}
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    del spec["config"]
    return spec


def series_scales(names: Sequence[str], *, lines: bool) -> tuple[Any, Any, Any]:
    """Return the encodings by colour, dash and shape under which every series has the same looks in all figures.

    The legend shows `lines` or the shapes of points.
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
    """Return the selection that pans by dragging and zooms by Ctrl and the wheel, so that the wheel alone scrolls."""
    mouse = "[event.pointerType === 'mouse' || !event.pointerType]"
    return altair().selection_interval(
        bind="scales",
        zoom="wheel![event.ctrlKey || event.metaKey || event.shiftKey]",
        translate=f"[pointerdown{mouse}, window:pointerup] > window:pointermove!",
    )


def compact(number: float) -> float:
    """Return `number` with the digits that a figure can show."""
    return float(f"{number:.5g}")
