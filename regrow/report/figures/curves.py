"""Figures over epochs: curves (mean over seeds, band of one standard deviation), and the sparsity of every layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.report.figures.base import (
    AT_LEVEL,
    GONE,
    LABEL_WIDTH,
    OUTSIDE,
    SHOWN,
    Figure,
    altair,
    compact,
    finish,
    label_places,
    limits,
    new_chart,
    outliers,
    series_scales,
    zoom,
)
from regrow.report.tables import Entry, percent, plus_minus, sentence
from regrow.runs.outcomes import Group, Summary

Points = list[tuple[int, Summary]]

# More columns than a screen can show would only make the page larger.
_LAYER_COLUMNS = 60
_LAYER_CAPTION = (
    "Pruned fraction of each layer over the training epochs, for the first seed. Pink: the layer is pruned completely."
)


@dataclass(frozen=True)
class Curve:
    """A quantity that is recorded in every epoch."""

    name: str
    title: str
    axis: str
    caption: str
    points: Callable[[Group], Points]
    scale: float = 1.0
    digits: int = 2
    of_masks: bool = False
    """Whether it exists only while masks change: not for dense networks or in fine-tuning."""


def _recorded(quantity: str) -> Callable[[Group], Points]:
    return lambda group: group.curve(quantity)


TRAINING = (
    Curve(
        "accuracy",
        "Accuracy",
        "top-1, %",
        "Top-1 accuracy of the pruned model after every epoch.",
        _recorded("top1"),
    ),
    Curve(
        "loss",
        "Training loss",
        "mean loss",
        "Mean cross-entropy over each epoch's training batches.",
        _recorded("loss"),
        digits=3,
    ),
    Curve(
        "sparsity",
        "Sparsity",
        "pruned, %",
        "Fraction of the targeted weights that is zero at the end of each epoch.",
        _recorded("sparsity"),
        scale=100,
        of_masks=True,
    ),
)
DYNAMICS = (
    Curve(
        "delta",
        "Quality of the pruning, δ",
        "δ = |w − ŵ|² / |w|²",
        "Fraction of the dense weights' squared norm that is pruned at the end of each epoch (Eq. 2 of the paper); "
        "zero for methods that keep no dense weights, and after the mask is fixed.",
        _recorded("delta"),
        digits=4,
        of_masks=True,
    ),
    Curve(
        "flips",
        "Flips of the mask",
        "changed, %",
        "Fraction of mask elements that differ from the previous epoch.",
        _recorded("flips"),
        scale=100,
        of_masks=True,
    ),
    Curve(
        "iou",
        "Overlap of consecutive masks",
        "IoU",
        "Intersection over union of the weights kept at the ends of consecutive epochs.",
        _recorded("iou"),
        digits=3,
        of_masks=True,
    ),
    Curve(
        "update-iou",
        "Overlap at mask updates",
        "IoU",
        "Intersection over union of the weights kept before and after a mask update: the mean over each epoch.",
        _recorded("refresh_iou"),
        digits=4,
        of_masks=True,
    ),
    Curve(
        "last-change",
        "Mask elements that still change",
        "change later, %",
        "Fraction of mask elements that change after each epoch; near zero, the mask is final.",
        Group.last_change,
        scale=100,
        of_masks=True,
    ),
)


def curve_figure(curve: Curve, entries: Sequence[Entry], series: Sequence[str], level: float | None) -> Figure | None:
    """Return the figure, first shown at the sparsity `level`, or None if there is nothing to draw."""
    drawn = [(entry, curve.points(entry.group)) for entry in entries if _moves(entry.group) or not curve.of_masks]
    drawn = [(entry, points) for entry, points in drawn if points]
    if not drawn:
        return None
    rows = [_row(curve, entry, points) for entry, points in drawn]
    means = [mean for row in rows for mean in row["mean"]]
    low, high = limits(means)
    _place_labels(rows, low, high)
    ends = [
        f"{entry.label} {plus_minus(points[-1][1], digits=curve.digits, scale=curve.scale)}" for entry, points in drawn
    ]
    description = f"{curve.title} ({curve.axis}) against the epoch. At the end: {sentence(ends)}"
    clipped = min(means) < low or max(means) > high
    chart = _chart(curve, series, level, (low, high), clipped=clipped).properties(description=description)
    caption = curve.caption + (OUTSIDE if clipped else "")
    return Figure(curve.name, curve.title, caption, description, finish(chart, rows))


def _place_labels(rows: Sequence[dict[str, Any]], low: float, high: float) -> None:
    """Give every curve the place of its label at each sparsity at which it is shown: labels must not overlap."""
    levels = sorted({row["level"] for row in rows if row["level"] is not None}) or [None]
    for row in rows:
        row["places"] = {}
    for level in levels:
        shown = {row["label"]: row for row in rows if row["level"] in (None, level)}
        places = label_places({name: row["mean"][-1] for name, row in shown.items()}, low, high)
        for name, place in places.items():
            shown[name]["places"][_key(level)] = place


def _key(level: float | None) -> str:
    """Return a sparsity as JavaScript writes it."""
    return "null" if level is None else f"{level!r}"


def _moves(group: Group) -> bool:
    return group.level is not None and not group.finetuned


def _end(group: Group) -> str:
    return "diverged" if group.ended else "not finished"


def _row(curve: Curve, entry: Entry, points: Points) -> dict[str, Any]:
    """Return one curve as arrays, which are much smaller than a record per point."""
    return {
        "series": entry.series,
        "label": entry.label if entry.group.finished else f"{entry.label} ({_end(entry.group)})",
        "level": entry.group.level,
        "end": f"{curve.scale * points[-1][1].mean:.{min(curve.digits, 3)}f} {entry.series}",
        "last": points[-1][0],
        "epoch": [epoch for epoch, _ in points],
        "mean": [compact(curve.scale * summary.mean) for _, summary in points],
        "low": [compact(curve.scale * summary.low) for _, summary in points],
        "high": [compact(curve.scale * summary.high) for _, summary in points],
        "text": [plus_minus(summary, digits=curve.digits, scale=curve.scale) for _, summary in points],
    }


def _chart(
    curve: Curve, series: Sequence[str], level: float | None, domain: tuple[float, float], *, clipped: bool
) -> Any:
    alt = altair()
    color, dashes, _ = series_scales(series, lines=True)
    # A short training would otherwise get ticks between its epochs.
    whole = alt.Axis(tickMinStep=1, labelExpr="datum.value % 1 ? '' : format(datum.value, 'd')", grid=False)
    x = alt.X("epoch:Q", title="epoch", scale=alt.Scale(zero=False, nice=False), axis=whole)
    y = alt.Y("mean:Q", title=curve.axis, scale=alt.Scale(zero=False, nice=False, domain=list(domain)))
    near = alt.selection_point(
        name="near", fields=["label", "epoch"], nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    base = new_chart().encode(x=x, color=color)
    band = base.mark_area(opacity=0.16, clip=True, aria=False).encode(y=alt.Y("low:Q", title=curve.axis), y2="high:Q")
    line = (
        base.mark_line(strokeWidth=2, clip=True, aria=False)
        .encode(y=y, strokeDash=dashes, detail="label:N")
        .add_params(zoom())
    )
    points = (
        base.mark_point(filled=True, size=60, clip=True, aria=False)
        .encode(
            y=y,
            opacity=alt.condition(near, alt.value(1), alt.value(0)),
            tooltip=alt.value(alt.ExprRef(_tooltip(curve))),
        )
        .add_params(near)
    )
    labels = (
        new_chart()
        .transform_calculate(place="datum.places[level == null ? 'null' : '' + level]")
        .transform_filter("datum.epoch == datum.last && isValid(datum.place)")
        .mark_text(align="left", dx=8, fontSize=12, limit=LABEL_WIDTH, clip=False, aria=False, x=alt.ExprRef("width"))
        .encode(y=alt.Y("place:Q", title=curve.axis), text="end:N", color=color)
    )
    marked = [outliers(base, curve.axis, *domain, tooltip=alt.value(alt.ExprRef(_tooltip(curve))))] if clipped else []
    return (
        alt.layer(band, line, points, *marked, labels)
        .transform_filter(SHOWN)
        .transform_filter(AT_LEVEL)
        .transform_flatten(["epoch", "mean", "low", "high", "text"])
        .add_params(alt.param(name="shown", value=list(series)), alt.param(name="level", value=level))
    )


def _tooltip(curve: Curve) -> str:
    """Return the tooltip as an expression: with a list of fields, Vega-Lite 6 shows texts as undefined here."""
    point = "(datum.datum || datum)"
    fields = {"run": f"{point}.label", "epoch": f"{point}.epoch", curve.axis: f"{point}.text"}
    return f"{{{', '.join(f'{json.dumps(title)}: {field}' for title, field in fields.items())}}}"


def layers_figure(entries: Sequence[Entry], chosen: float | None = None) -> Figure | None:
    """Return the figure, first shown for an entry with sparsity `chosen`, or None if there is nothing to draw."""
    drawn = [entry for entry in entries if entry.group.level is not None and not entry.group.finetuned]
    drawn = [entry for entry in drawn if entry.group.outcomes[0].records]
    if not drawn:
        return None
    first = next((entry for entry in drawn if entry.group.level == chosen), drawn[0])
    rows = [row for entry in drawn for row in _layer_rows(entry)]
    description = f"Sparsity of every layer against the epoch. {' '.join(map(_layers_in_words, drawn))}"
    layers = max(len(entry.group.outcomes[0].records[-1]["layers"]) for entry in drawn)
    chart = _layer_chart(first.label, layers).properties(description=description)
    spec = finish(chart, rows, height=layers * (16 if layers < 60 else 9))
    return Figure("layers", "Sparsity of every layer", _LAYER_CAPTION, description, spec)


def _layer_rows(entry: Entry) -> list[dict[str, Any]]:
    records = entry.group.outcomes[0].records
    stride = -(-len(records) // _LAYER_COLUMNS)
    # Counted from the end, because the last epoch must be included.
    columns = records[::-1][::stride][::-1]
    epochs = [record["epoch"] for record in columns]
    return [
        {
            "run": entry.label,
            "layer": name.removesuffix(".weight"),
            "epoch": epochs,
            "pruned": [_rounded(record["layers"][name]) for record in columns],
        }
        for name in records[-1]["layers"]
    ]


def _rounded(fraction: float) -> float:
    """Round, but never to one, which means that the layer is pruned completely."""
    return 1.0 if fraction >= 1 else min(round(fraction, 4), 0.9999)


def _layers_in_words(entry: Entry) -> str:
    layers = entry.group.outcomes[0].records[-1]["layers"]
    gone = [name.removesuffix(".weight") for name, pruned in layers.items() if pruned >= 1]
    least, most = min(layers.values()), max(layers.values())
    lost = f" Pruned completely: {', '.join(gone)}." if gone else ""
    return f"{entry.label}: between {percent(_rounded(least))} and {percent(_rounded(most))} at the end.{lost}"


def _layer_chart(chosen: str, layers: int) -> Any:
    alt = altair()
    labels = alt.Axis(labelLimit=160, labelOverlap=layers >= 60, ticks=False, domain=False)
    color = alt.Color(
        "pruned:Q",
        title="pruned",
        scale=alt.Scale(domain=[0, 1]),
        legend=alt.Legend(orient="bottom", format=".0%", gradientLength=180, direction="horizontal"),
    )
    return (
        new_chart()
        .transform_filter("datum.run == run")
        .transform_flatten(["epoch", "pruned"])
        .mark_rect(aria=False)
        .encode(
            x=alt.X(
                "epoch:O",
                title="epoch",
                axis=alt.Axis(labelOverlap="parity", labelAngle=0, labelSeparation=6, ticks=False, domain=False),
            ),
            y=alt.Y("layer:N", title=None, sort=None, axis=labels),
            color=alt.condition("datum.pruned >= 1", alt.value(GONE), color),
            tooltip=[
                alt.Tooltip("layer:N"),
                alt.Tooltip("epoch:O"),
                alt.Tooltip("pruned:Q", format=".2%"),
            ],
        )
        .add_params(alt.param(name="run", value=chosen))
    )
