"""Costs: accuracy against sparsity, parameters and MACs, and the speed of training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.report.figures.base import (
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
from regrow.report.tables import Entry, Task, plus_minus, seeds, sentence
from regrow.runs.outcomes import Summary
from regrow.text import quantity


@dataclass(frozen=True)
class Cost:
    """A quantity to plot accuracy against; the sparsest network is on the right."""

    choice: str
    """Its name in the list of x axes."""
    axis: str
    quantity: str
    scale: float = 1.0
    logarithmic: bool = False

    @property
    def name(self) -> str:
        """Name of the figure."""
        return f"accuracy-{self.choice.lower()}"

    @property
    def title(self) -> str:
        """Title of the figure."""
        return f"Accuracy and {self.choice}"


COSTS = (
    Cost("sparsity", "pruned of the targeted weights, %", "sparsity", scale=100),
    Cost("parameters", "parameters left", "nonzeros", logarithmic=True),
    Cost("MACs", "multiply-accumulates left per image", "macs_kept", logarithmic=True),
)
_TRADEOFF_CAPTION = "Top-1 accuracy of the last epoch: mean and standard deviation over seeds."
_TOP1 = "top-1, %"
_DENSE = " The dashed line is the dense network."


def tradeoff_figure(cost: Cost, task: Task) -> Figure | None:
    """Return the figure, or None if there are fewer than two points."""
    rows = [row for entry in task.entries if entry.group.finished and (row := _tradeoff_row(cost, entry))]
    if len(rows) < 2 or all(row["level"] is None for row in rows):
        return None
    said = [f"{row['label']}: {row['accuracy']} % at {row['at']}" for row in rows]
    description = f"Accuracy (top-1, %) against {cost.axis}: {sentence(said)}"
    dense = any(row["level"] is None for row in rows)
    means = [row["mean"] for row in rows]
    low, high = limits(means, lone=True)
    clipped = min(means) < low or max(means) > high
    _place_labels(rows, low, high)
    chart = _tradeoff_chart(cost, task.series, (low, high), dense=dense, clipped=clipped)
    caption = _TRADEOFF_CAPTION + (_DENSE if dense else "") + (OUTSIDE if clipped else "")
    spec = finish(chart.properties(description=description), rows)
    return Figure(cost.name, cost.title, caption, description, spec)


def _place_labels(rows: Sequence[dict[str, Any]], low: float, high: float) -> None:
    """Give the sparsest point of every series a place for its label."""
    last: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["level"] or 0.0):
        row["place"] = None
        last[row["series"]] = row
    for series, place in label_places({name: row["mean"] for name, row in last.items()}, low, high).items():
        last[series]["place"] = place


def _tradeoff_row(cost: Cost, entry: Entry) -> dict[str, Any] | None:
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
        "end": f"{top1.mean:.1f} {entry.series}",
    }


def _spent(cost: Cost, spent: Summary) -> str:
    return quantity(spent.mean) if cost.logarithmic else f"{cost.scale * spent.mean:.2f} %"


def _tradeoff_chart(
    cost: Cost, series: Sequence[str], domain: tuple[float, float], *, dense: bool, clipped: bool
) -> Any:
    alt = altair()
    color, dashes, shapes = series_scales(series, lines=False)
    kind: dict[str, Any] = {"type": "log", "reverse": True} if cost.logarithmic else {"zero": False}
    scale = alt.Scale(padding=20, nice=False, **kind)  # labels fit if the padding is exact
    ticks: dict[str, Any] = {"format": "~s", "tickCount": 5} if cost.logarithmic else {"tickCount": 6}
    axis = alt.Axis(grid=False, labelBound=True, **ticks)  # drops labels that would be cut off
    y = alt.Y("mean:Q", title=_TOP1, scale=alt.Scale(zero=False, nice=False, domain=list(domain)))
    base = new_chart().encode(x=alt.X("x:Q", title=cost.axis, scale=scale, axis=axis), color=color)
    pruned = base.transform_filter("datum.level != null")
    tooltip = [
        alt.Tooltip("label:N", title="run"),
        alt.Tooltip("accuracy:N", title=_TOP1),
        alt.Tooltip("seeds:N", title="over"),
        alt.Tooltip("at:N", title=cost.axis.removesuffix(", %")),
    ]
    line = pruned.mark_line(clip=True, aria=False).encode(y=y, strokeDash=dashes).add_params(zoom())
    bar = pruned.mark_rule(strokeWidth=1.5, clip=True, aria=False).encode(y=alt.Y("low:Q", title=_TOP1), y2="high:Q")
    point = pruned.mark_point(filled=True, size=70, opacity=1, clip=True).encode(y=y, shape=shapes, tooltip=tooltip)
    beside = (
        new_chart()
        .transform_filter("datum.level == null")
        .mark_rule(strokeDash=[5, 4], strokeWidth=1.5)
        .encode(y=y, color=color, tooltip=tooltip)
    )
    place = alt.Y("place:Q", title=_TOP1)
    text = {"align": "left", "fontSize": 12, "limit": LABEL_WIDTH, "clip": False, "aria": False}
    labels = pruned.transform_filter("isValid(datum.place)").mark_text(dx=10, **text).encode(y=place, text="end:N")
    of_dense = (
        new_chart()
        .transform_filter("datum.level == null && isValid(datum.place)")
        .mark_text(dx=4, x=alt.ExprRef("width"), **text)
        .encode(y=place, text="end:N", color=color)
    )
    marked = [outliers(pruned, _TOP1, *domain, tooltip=tooltip)] if clipped else []
    return (
        alt.layer(line, bar, point, *marked, labels, *([beside, of_dense] if dense else []))
        .transform_filter(SHOWN)
        .add_params(alt.param(name="shown", value=list(series)))
    )


_SPEED_CAPTION = (
    "Images per second of the training loop, masks included: the median over epochs, mean and standard deviation over "
    "seeds. Other programs may have run on the machine; a side-by-side benchmark is more exact."
)


def speed_figure(task: Task) -> Figure | None:
    """Return the figure of training speed, or None if there are fewer than two speeds."""
    rows = _speed_rows(task)
    if len(rows) < 2:
        return None
    said = [f"{row['name']} {row['text']}" for row in rows]
    description = f"Images per second in training: {sentence(said)}"
    chart = _speed_chart(task, [row["name"] for row in rows]).properties(description=description)
    machines = dict.fromkeys(row["machine"] for row in rows)
    caption = _SPEED_CAPTION + (f" {_numbered(machines)}" if len(machines) > 1 else "")
    return Figure("speed", "Speed of training", caption, description, finish(chart, rows, height=24 * len(rows)))


def _numbered(machines: Iterable[str]) -> str:
    """Return the list of machines by number; the bars have no room for their names."""
    return " ".join(f"Machine {number}: {machine}." for number, machine in enumerate(machines, 1))


def _speed_rows(task: Task) -> list[dict[str, Any]]:
    speeds = [(entry, entry.group.speeds()) for entry in task.entries if not entry.group.finetuned]
    dense = {
        machine: speed.mean for entry, found in speeds if entry.group.level is None for machine, speed in found.items()
    }
    machines = list(dict.fromkeys(machine for _, found in speeds for machine in found))
    return [
        {
            "series": entry.series,
            "name": _name(entry.label, machine, machines),
            "machine": machine,
            "mean": compact(speed.mean),
            "low": compact(speed.low),
            "high": compact(speed.high),
            "text": plus_minus(speed, digits=0),
            "relative": f"{speed.mean / dense[machine]:.2f}" if machine in dense else "–",
        }
        for entry, found in speeds
        for machine, speed in found.items()
    ]


def _name(label: str, machine: str, machines: list[str]) -> str:
    return f"{machines.index(machine) + 1}: {label}" if len(machines) > 1 else label


def _speed_chart(task: Task, names: list[str]) -> Any:
    alt = altair()
    color, _, _ = series_scales(task.series, lines=False)
    y = alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=240, ticks=False, domain=False))
    base = new_chart().encode(y=y)
    bar = base.mark_bar(height={"band": 0.6}, opacity=0.85).encode(
        x=alt.X("mean:Q", title="images per second", axis=alt.Axis(format=",d", tickCount=4)),
        color=color.legend(None),
        tooltip=[
            alt.Tooltip("name:N", title="run"),
            alt.Tooltip("text:N", title="images per second"),
            alt.Tooltip("relative:N", title="of dense"),
            alt.Tooltip("machine:N", title="on"),
        ],
    )
    rule = base.mark_rule(strokeWidth=1.5, aria=False).encode(x=alt.X("low:Q"), x2="high:Q")
    return alt.layer(bar, rule).transform_filter(SHOWN).add_params(alt.param(name="shown", value=task.series))
