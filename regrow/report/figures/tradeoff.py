"""What sparsity costs: accuracy against sparsity, parameters and multiplications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regrow.report.figures.figure import SHOWN, Figure, altair, compact, finish, new_chart, series_scales, zoom
from regrow.report.outcomes import Summary
from regrow.report.tasks import Entry, Task
from regrow.report.text import plus_minus, seeds, sentence
from regrow.text import quantity


@dataclass(frozen=True)
class Cost:
    """What accuracy is held against."""

    name: str
    title: str
    axis: str
    quantity: str
    scale: float = 1.0
    logarithmic: bool = False


COSTS = (
    Cost("accuracy-sparsity", "Accuracy and sparsity", "pruned of the targeted weights, %", "sparsity", scale=100),
    Cost("accuracy-parameters", "Accuracy and parameters", "parameters left", "nonzeros", logarithmic=True),
    Cost("accuracy-macs", "Accuracy and MACs", "multiply-accumulates left per image", "macs_kept", logarithmic=True),
)
_CAPTION = "Top-1 accuracy of the last epoch at what was reached: mean and standard deviation over seeds."
_DENSE = " The broken line is the dense network."


def tradeoff_figure(cost: Cost, task: Task) -> Figure | None:
    """Return the figure, or None where fewer than two points could be compared."""
    rows = [row for entry in task.entries if entry.group.finished and (row := _row(cost, entry))]
    if len(rows) < 2 or all(row["level"] is None for row in rows):
        return None
    said = [f"{row['label']}: {row['accuracy']} % at {row['at']}" for row in rows]
    description = f"Accuracy (top-1, %) against {cost.axis}: {sentence(said)}"
    dense = any(row["level"] is None for row in rows)
    chart = _chart(cost, task.series, dense=dense).properties(description=description)
    caption = _CAPTION + (_DENSE if dense else "")
    return Figure(cost.name, cost.title, caption, description, finish(chart, rows))


def _row(cost: Cost, entry: Entry) -> dict[str, Any] | None:
    top1, spent = entry.group.summary("top1"), entry.group.summary(cost.quantity)
    if top1 is None or spent is None:
        return None
    return {
        "series": entry.series,
        "label": entry.label,
        "level": entry.group.level,
        "x": compact(cost.scale * spent.mean),
        "mean": compact(top1.mean),
        "low": compact(top1.low),
        "high": compact(top1.high),
        "accuracy": plus_minus(top1),
        "seeds": seeds(top1.n),
        "at": _spent(cost, spent),
    }


def _spent(cost: Cost, spent: Summary) -> str:
    return quantity(spent.mean) if cost.logarithmic else f"{cost.scale * spent.mean:.2f} %"


def _chart(cost: Cost, series: Sequence[str], *, dense: bool) -> Any:
    alt = altair()
    color, dashes, shapes = series_scales(series, lines=False)
    scale = alt.Scale(type="log", nice=False, padding=20) if cost.logarithmic else alt.Scale(zero=False, padding=20)
    ticks: dict[str, Any] = {"format": "~s", "tickCount": 5} if cost.logarithmic else {}
    axis = alt.Axis(grid=False, labelBound=True, **ticks)  # a label that would be cut is left out
    y = alt.Y("mean:Q", title="top-1, %", scale=alt.Scale(zero=False))
    base = new_chart().encode(x=alt.X("x:Q", title=cost.axis, scale=scale, axis=axis), color=color)
    pruned = base.transform_filter("datum.level != null")
    tooltip = [
        alt.Tooltip("label:N", title="run"),
        alt.Tooltip("accuracy:N", title="top-1, %"),
        alt.Tooltip("seeds:N", title="over"),
        alt.Tooltip("at:N", title=cost.axis.removesuffix(", %")),
    ]
    line = pruned.mark_line(aria=False).encode(y=y, strokeDash=dashes).add_params(zoom())
    bar = pruned.mark_rule(strokeWidth=1.5, aria=False).encode(y=alt.Y("low:Q", title="top-1, %"), y2="high:Q")
    point = pruned.mark_point(filled=True, size=70, opacity=1).encode(y=y, shape=shapes, tooltip=tooltip)
    beside = (
        new_chart()
        .transform_filter("datum.level == null")
        .mark_rule(strokeDash=[5, 4], strokeWidth=1.5)
        .encode(y=y, color=color, tooltip=tooltip)
    )
    return (
        alt.layer(line, bar, point, *([beside] if dense else []))
        .transform_filter(SHOWN)
        .add_params(alt.param(name="shown", value=list(series)))
    )
