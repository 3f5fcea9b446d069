"""Figures of the theorems and of the two-dimensional picture; they need the extra `report`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regrow.report.figures.base import altair
from regrow.report.render import vl_convert
from reproduce.theory.descent import Picture, values
from reproduce.theory.study import Record

_BLUE, _RED, _GRAY, _DARK = "#14579b", "#b5341f", "#5f6770", "#22262a"
_COLORS = {"pruned model": _BLUE, "dense model": _GRAY, "one-shot": _RED}
_ACROSS, _UP, _CELLS = (-0.3, 2.1), (-0.3, 2.4), 54


def theorem(records: Sequence[Record], *, title: str, quantity: str) -> Any:
    """Return measured values (solid) and bounds (dashed) over the number of steps, one panel per sparsity."""
    alt = altair()
    rows = [
        {**record.as_row(), "pruned": f"{record.sparsity:.0%} pruned", "value": value, "line": line}
        for record in records
        for line, value in (("measured", record.measured), ("bound", record.bound))
    ]
    models = list(dict.fromkeys(record.model for record in records))
    colors = alt.Scale(domain=models, range=[_COLORS[model] for model in models])
    dashes = alt.Scale(domain=["measured", "bound"], range=[[1, 0], [5, 3]])
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=_log(alt, "steps", "steps T", [row["steps"] for row in rows]),
        y=_log(alt, "value", quantity, [row["value"] for row in rows]),
        color=alt.Color("model:N", title=None, scale=colors, legend=alt.Legend(symbolType="stroke")),
    )
    lines = base.mark_line().encode(
        strokeDash=alt.StrokeDash("line:N", title=None, scale=dashes, legend=alt.Legend(symbolType="stroke"))
    )
    panel = (lines + base.mark_circle(size=12, opacity=1)).properties(width=170, height=220)
    return panel.facet(column=alt.Column("pruned:N", title=None, sort=None)).properties(title=title)


def neighborhood(records: Sequence[Record], *, smoothness: float) -> Any:
    """Return the final value of the pruned model against the average pruning error, for every sparsity."""
    alt = altair()
    last = max(record.steps for record in records)
    rows: list[dict[str, Any]] = [
        {
            "error": record.neighborhood / (3 * smoothness),
            "measured": record.measured,
            "bound": record.bound,
            "pruned": f"{record.sparsity:.0%} pruned",
        }
        for record in records
        if record.steps == last and record.sparsity > 0
    ]
    title = f"Where the pruned model ends (T = {last}), by the error that pruning makes"
    x = _log(alt, "error", "average of δ‖x‖²", [row["error"] for row in rows])
    heights = [row[name] for row in rows for name in ("measured", "bound")]
    base = alt.Chart(alt.Data(values=rows)).encode(x=x)
    measured = base.encode(y=_log(alt, "measured", "f(û) − f*", heights))
    bound = base.encode(y=_log(alt, "bound", "f(û) − f*", heights))
    return alt.layer(
        bound.mark_line(strokeDash=[5, 3], color=_BLUE),
        measured.mark_line(color=_BLUE),
        measured.mark_circle(size=40, color=_BLUE, opacity=1),
        measured.mark_text(dy=14, color=_GRAY).encode(text="pruned:N"),
    ).properties(width=340, height=240, title=title)


def _log(alt: Any, name: str, title: str, found: Sequence[float]) -> Any:
    """Return a logarithmic axis with a tick at every power of ten in the range of `found`."""
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    ticks = [10.0**power for power in range(low, high + 1)]
    scale = alt.Scale(type="log", domain=[ticks[0], ticks[-1]], nice=False)
    channel = alt.X if name in ("steps", "error") else alt.Y
    return channel(f"{name}:Q", title=title, scale=scale, axis=alt.Axis(values=ticks, format="~g"))


def plane(picture: Picture) -> Any:
    """Return the surface with the two descents and the sparse models that they end with."""
    alt = altair()
    x = alt.X("x:Q", title="first weight", scale=alt.Scale(domain=_ACROSS, nice=False), axis=alt.Axis(grid=False))
    y = alt.Y("y:Q", title="second weight", scale=alt.Scale(domain=_UP, nice=False), axis=alt.Axis(grid=False))
    shades = alt.Scale(scheme={"name": "greys", "extent": [0.0, 0.5]}, reverse=True)
    surface = alt.Chart(alt.Data(values=_surface(picture))).mark_rect(clip=True)
    layers = [surface.encode(x=x, x2="right:Q", y=y, y2="top:Q", color=alt.Color("f:Q", scale=shades))]
    for points, color, dash in (
        (picture.dense.dense, _RED, [1, 0]),
        (picture.feedback.dense, _BLUE, [4, 3]),
        (picture.feedback.pruned, _BLUE, [1, 0]),
    ):
        path = [{"x": a, "y": b, "order": i} for i, (a, b) in enumerate(points.tolist())]
        chart = alt.Chart(alt.Data(values=path)).encode(x=x, y=y, order="order:Q")
        layers.append(chart.mark_line(color=color, strokeDash=dash, strokeWidth=1.5))
        layers.append(chart.mark_circle(color=color, size=14, opacity=1))
    layers += _labels(alt, picture, x, y)
    return alt.layer(*layers).properties(width=380, height=420, title="Keeping one weight of two")


def _surface(picture: Picture) -> list[dict[str, float]]:
    step = (_UP[1] - _UP[0]) / _CELLS
    corners = torch.cartesian_prod(*(torch.arange(*ends, step, dtype=torch.float64) for ends in (_ACROSS, _UP)))
    heights = values(picture.surface, corners + step / 2)
    # Cells overlap slightly, so that no seams are visible.
    return [
        {"x": a, "right": a + 1.1 * step, "y": b, "top": b + 1.1 * step, "f": f}
        for (a, b), f in zip(corners.tolist(), heights.tolist(), strict=True)
    ]


def _labels(alt: Any, picture: Picture, x: Any, y: Any) -> list[Any]:
    found = picture.delivered
    marks = [
        (picture.dense.dense[0], "start", _DARK, 10, 4),
        (picture.dense.dense[-1], "SGD", _RED, 10, 4),
        (picture.one_shot, f"pruned in one shot: f = {found['one-shot']:.2f}", _RED, -62, 18),
        (picture.feedback.dense[-1], "dense weights behind DPF", _BLUE, 10, 4),
        (picture.feedback.pruned[-1], f"DPF: f = {found['DPF']:.2f}", _BLUE, 10, 4),
        (picture.feedback.pruned[0], "its pruned start", _BLUE, -110, 4),
    ]
    layers = []
    for point, text, color, right, down in marks:
        row = [{"x": float(point[0]), "y": float(point[1]), "text": text}]
        base = alt.Chart(alt.Data(values=row)).encode(x=x, y=y)
        layers.append(base.mark_point(color=color, filled=True, size=60, shape="diamond", opacity=1))
        words = base.mark_text(color=color, align="left", fontWeight="bold", dx=right, dy=down)
        layers.append(words.encode(text="text:N"))
    return layers


def save(chart: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as SVG and PNG."""
    vl_convert()  # altair needs it to save files
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.svg", folder / f"{name}.png"]
    chart.save(files[0])
    chart.save(files[1], scale_factor=2)
    return files
