"""Heat map of the sparsity of every layer over training, for one run at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regrow.report.figures.base import GONE, Figure, altair, finish, new_chart
from regrow.report.tables import Entry, percent

# More columns than a screen can show would only make the page larger.
_COLUMNS = 60
_CAPTION = (
    "Pruned fraction of each layer over the training epochs, for the first seed. Pink: the layer is pruned completely."
)


def layers_figure(entries: Sequence[Entry], chosen: float | None = None) -> Figure | None:
    """Return the figure, first shown for an entry with sparsity `chosen`, or None if there is nothing to draw."""
    drawn = [entry for entry in entries if entry.group.level is not None and not entry.group.finetuned]
    drawn = [entry for entry in drawn if entry.group.outcomes[0].records]
    if not drawn:
        return None
    first = next((entry for entry in drawn if entry.group.level == chosen), drawn[0])
    rows = [row for entry in drawn for row in _rows(entry)]
    description = f"Sparsity of every layer against the epoch. {' '.join(map(_in_words, drawn))}"
    layers = max(len(entry.group.outcomes[0].records[-1]["layers"]) for entry in drawn)
    chart = _chart(first.label, layers).properties(description=description)
    spec = finish(chart, rows, height=layers * (16 if layers < 60 else 9))
    return Figure("layers", "Sparsity of every layer", _CAPTION, description, spec)


def _rows(entry: Entry) -> list[dict[str, Any]]:
    records = entry.group.outcomes[0].records
    stride = -(-len(records) // _COLUMNS)
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


def _in_words(entry: Entry) -> str:
    layers = entry.group.outcomes[0].records[-1]["layers"]
    gone = [name.removesuffix(".weight") for name, pruned in layers.items() if pruned >= 1]
    least, most = min(layers.values()), max(layers.values())
    lost = f" Pruned completely: {', '.join(gone)}." if gone else ""
    return f"{entry.label}: between {percent(_rounded(least))} and {percent(_rounded(most))} at the end.{lost}"


def _chart(chosen: str, layers: int) -> Any:
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
                axis=alt.Axis(labelOverlap="greedy", labelAngle=0, labelSeparation=6, ticks=False, domain=False),
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
