"""What pruning costs in time: images per second of every method, beside the dense network on the same machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from regrow.report.figures.figure import SHOWN, Figure, altair, compact, finish, new_chart, series_scales
from regrow.report.tasks import Task
from regrow.report.text import plus_minus, sentence

_CAPTION = (
    "Images per second of the training loop, masks included: the median over epochs, mean and standard deviation over "
    "seeds. Runs share their machine with whatever else ran there; a benchmark side by side is the better measure."
)


def speed_figure(task: Task) -> Figure | None:
    """Return the figure, or None where there are no two speeds to compare."""
    rows = _rows(task)
    if len(rows) < 2:
        return None
    said = [f"{row['name']} {row['text']}" for row in rows]
    description = f"Images per second in training: {sentence(said)}"
    chart = _chart(task, [row["name"] for row in rows]).properties(description=description)
    machines = dict.fromkeys(row["machine"] for row in rows)
    caption = _CAPTION + (f" {_numbered(machines)}" if len(machines) > 1 else "")
    return Figure("speed", "Speed of training", caption, description, finish(chart, rows, height=24 * len(rows)))


def _numbered(machines: Iterable[str]) -> str:
    """Return which machine has which number: the bars have no room for its name."""
    return " ".join(f"Machine {number}: {machine}." for number, machine in enumerate(machines, 1))


def _rows(task: Task) -> list[dict[str, Any]]:
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


def _chart(task: Task, names: list[str]) -> Any:
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
