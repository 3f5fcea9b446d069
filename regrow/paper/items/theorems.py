"""Both convergence theorems and the two-dimensional picture, from `regrow.theory`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regrow.paper.cells import Library
from regrow.paper.item import Item
from regrow.paper.scales import Scale
from regrow.paper.views import View, table
from regrow.report.render import can_draw
from regrow.report.tables import percent


def _prove(scale: Scale, folder: Path) -> None:
    """Run the theorems' experiments unless they were run; at the paper's and the cpu scale in full."""
    from regrow.theory import study

    target = folder / "theory"
    if not (target / "theorems.jsonl").is_file():
        study.run(target, scale=study.SMOKE if scale.name == "smoke" else study.FULL)


def read_theorems(library: Library) -> list[dict[str, Any]]:
    """Return what was measured, with the bounds; empty where nothing was run."""
    path = library.file("theorems.jsonl")
    return [] if path is None else [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _theorems_view(scale: Scale, library: Library) -> View:
    records = read_theorems(library)
    last = {(record["theorem"], record["model"], record["sparsity"]): record for record in records}
    lines = [
        [
            record["theorem"],
            record["model"],
            percent(record["sparsity"]),
            f"{record['steps']}",
            f"{record['measured']:.2g}",
            f"{record['bound']:.2g}",
        ]
        for record in last.values()
    ]
    held = sum(record["measured"] <= record["bound"] for record in records)
    text = f"{held} of {len(records)} measurements are within their bound." if records else "Not run."
    head = ["theorem", "model", "pruned", "steps T", "measured", "bound"]
    return View("theorems", TITLES["theorems"], f"{text}\n\n{table(head, lines)}" if lines else text, records)


def _paint(scale: Scale, folder: Path) -> None:
    from regrow.theory import figures, picture

    if can_draw():
        figures.save(figures.plane(picture.draw()), folder, "picture-plane")


def _picture_view(scale: Scale, library: Library) -> View:
    from regrow.theory import picture

    delivered = picture.draw().delivered
    rows = [{"method": method, "f": value} for method, value in delivered.items()]
    lines = [[method, f"{value:.2f}"] for method, value in delivered.items()]
    drawn = "\n\n![two weights](picture-plane.svg)" if library.file("picture-plane.svg") else ""
    return View("picture", TITLES["picture"], table(["delivered by", "f"], lines) + drawn, rows)


TITLES = {
    "theorems": "Theorems 4.1 and 4.2: measured beside what they promise",
    "picture": "The 2-D picture: one weight of two may stay",
}

ITEMS = (
    Item("theorems", TITLES["theorems"], _theorems_view, work=_prove, cost="minutes, no training"),
    Item("picture", TITLES["picture"], _picture_view, work=_paint, cost="seconds, no training"),
)
