"""Two settings against each other: accuracy as a table and as a heat map, as in the paper's study of its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.paper.cells import Cell, Library
from regrow.paper.views import accuracy, as_row, table
from regrow.report.figures.figure import Figure, altair, compact, finish, new_chart
from regrow.report.files import can_draw


@dataclass(frozen=True)
class Heat:
    """Cells by the text of their row and column."""

    name: str
    title: str
    row: str
    column: str
    cells: Mapping[tuple[str, str], Cell]
    relative: bool = False
    """Whether colours show the distance to the best of the row rather than the accuracy itself."""

    @property
    def across(self) -> list[str]:
        """The columns."""
        return list(dict.fromkeys(column for _, column in self.cells))

    @property
    def down(self) -> list[str]:
        """The rows."""
        return list(dict.fromkeys(row for row, _ in self.cells))

    def text(self, library: Library) -> str:
        """Return the accuracies as a table."""
        lines = [[row, *(accuracy(library, self.cells[row, column]) for column in self.across)] for row in self.down]
        return table([f"{self.row} \\ {self.column}", *self.across], lines)

    def rows(self, library: Library) -> list[dict[str, Any]]:
        """Return the accuracies for programs."""
        return [
            {self.row: row, self.column: column, **as_row(library.summary(cell), library.diverged(cell))}
            for (row, column), cell in self.cells.items()
        ]

    def figures(self, library: Library) -> tuple[Figure, ...]:
        """Return the heat map of what was run, or nothing where there is nothing to compare or to draw with."""
        points = self._points(library)
        if len(points) < 2 or not can_draw():
            return ()
        said = "; ".join(f"{point['row']}, {point['column']}: {point['text']}" for point in points)
        description = f"{self.title}. {said}."
        chart = _chart(self, points).properties(description=description)
        shown = "the distance to the best of its row" if self.relative else "top-1 accuracy"
        caption = f"Colours: {shown}, per cent. Where there is no run the field is empty."
        return (Figure(self.name, self.title, caption, description, finish(chart, points, height=40 * len(self.down))),)

    def _points(self, library: Library) -> list[dict[str, Any]]:
        found = {key: summary for key, cell in self.cells.items() if (summary := library.summary(cell)) is not None}
        best = {row: max((s.mean for (r, _), s in found.items() if r == row), default=0.0) for row in self.down}
        points = []
        for (row, column), summary in found.items():
            value = summary.mean - (best[row] if self.relative else 0.0)
            points.append({"row": row, "column": column, "value": compact(value), "text": f"{value:.2f}"})
        return points


def _chart(heat: Heat, points: Sequence[Mapping[str, Any]]) -> Any:
    alt = altair()
    middle = (min(point["value"] for point in points) + max(point["value"] for point in points)) / 2
    base = new_chart().encode(
        x=alt.X("column:N", title=heat.column, sort=heat.across, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("row:N", title=heat.row, sort=heat.down),
    )
    colour = alt.Color("value:Q", title=None, scale=alt.Scale(scheme="blues", zero=False), legend=None)
    dark = alt.condition(f"datum.value > {middle}", alt.value("white"), alt.value("black"))
    return alt.layer(base.mark_rect().encode(color=colour), base.mark_text().encode(text="text:N", color=dark))
