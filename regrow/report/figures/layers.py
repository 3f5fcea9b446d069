"""Where a network is pruned, and when: the sparsity of every layer over training, one run at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regrow.report.figures.figure import Figure, altair, finish, new_chart
from regrow.report.tasks import Entry, percent
from regrow.report.theme import GONE

# More columns than a screen can show would only make the page heavy.
_COLUMNS = 60
_CAPTION = (
    "Share of each layer's weights that is pruned, over the epochs of training, of the first seed. "
    "Pink: nothing of the layer is left."
)


def layers_figure(entries: Sequence[Entry], chosen: float | None = None) -> Figure | None:
    """Return the figure of the first of `entries` at sparsity `chosen` (others can be chosen), or None without any."""
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
    # Counted from the end: the last epoch is the one that must be there.
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


def _rounded(share: float) -> float:
    """Round, but never to one: that means that nothing is left."""
    return 1.0 if share >= 1 else min(round(share, 4), 0.9999)


def _in_words(entry: Entry) -> str:
    layers = entry.group.outcomes[0].records[-1]["layers"]
    gone = [name.removesuffix(".weight") for name, share in layers.items() if share >= 1]
    least, most = min(layers.values()), max(layers.values())
    lost = f" Nothing is left of {', '.join(gone)}." if gone else ""
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
