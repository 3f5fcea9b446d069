"""How figures and page look in light and in dark, in one place, so that they agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Theme:
    """The colours of one mode; those of `series` have a contrast of at least 3 to the surface (WCAG 1.4.11)."""

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
"""Where nothing is left of a layer: unlike every colour of the ramp, in both modes."""

# After the colours are used up, lines get dashes and points get another shape.
DASHES = ((1, 0), (6, 3), (2, 2), (8, 2, 2, 2))
SHAPES = ("circle", "square", "triangle-up", "diamond")


def dash(index: int) -> tuple[int, ...]:
    """Return the dashes of the series with this index."""
    return DASHES[index // len(LIGHT.series) % len(DASHES)]


def shape(index: int) -> str:
    """Return the shape of the points of the series with this index: neighbours in colour differ in shape."""
    return SHAPES[index % len(SHAPES)]
