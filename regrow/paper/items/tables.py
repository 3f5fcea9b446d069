"""Tables 1 to 6 of the paper, and all methods beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from regrow.paper import published
from regrow.paper.cells import Cell, Library
from regrow.paper.compare import DENSE, Column, Comparison, explained, in_print, places_of
from regrow.paper.item import Item
from regrow.paper.scales import Scale
from regrow.paper.views import NOT_RUN, View, accuracy, as_row, number, table
from regrow.report.tasks import percent
from regrow.train.text import quantity

REWIRING = (DENSE, Column("snip"), Column("sparse-momentum"), Column("dsr"), Column("dpf"))
SIMPLE = (
    DENSE,
    Column("oneshot", finetuned=True),
    Column("incremental"),
    Column("incremental", finetuned=True),
    Column("dpf"),
    Column("dpf", finetuned=True),
)
STRUCTURED = (Column("dense", unit="filter"), Column("sfp", unit="filter"), Column("dpf", unit="filter"))
EVERY_METHOD = (
    *(DENSE, Column("static"), Column("snip"), Column("set"), Column("dsr"), Column("sparse-momentum")),
    *(Column("rigl"), Column("granet"), Column("acdc")),
    *SIMPLE[1:],
    Column("dpf", fields=(("options", ("settle=0.1",)),), name="DPF, settle=0.1"),
)
STEADY = (
    Column("incremental"),
    Column("dpf"),
    Column("dpf", fields=(("options", ("settle=0.1",)),), name="DPF, settle=0.1"),
    Column("dpf", fields=(("options", ("stabilise=true",)),), name="DPF, stabilise"),
    Column("dpf", finetuned=True),
)
STEADY_FILTERS = (
    *STRUCTURED,
    Column("dpf", unit="filter", fields=(("options", ("stabilise=true",)),), name="DPF, stabilise"),
    Column("sfp", unit="filter", fields=(("ramp_end", 0.0),), name="SFP, constant ratio"),
)
SPARSITIES = (0.8, 0.9, 0.95)
RATIOS = (0.2, 0.4)


def _compared(
    name: str,
    title: str,
    columns: tuple[Column, ...],
    of: Iterable[str],
    instead: tuple[float, ...],
    networks: tuple[str, ...] | None = None,
) -> Item:
    """Return a table of methods at the places of published tables, at a small scale at the sparsities `instead`."""

    def comparison(scale: Scale) -> Comparison:
        return Comparison(columns, tuple(scale.places(places_of(of, networks=networks), instead)))

    return Item(
        name=name,
        title=title,
        cells=lambda scale, library: comparison(scale).cells(scale),
        view=lambda scale, library: View(
            name, title, comparison(scale).text(scale, library), comparison(scale).rows(scale, library)
        ),
    )


def _macs_cells(scale: Scale, library: Library) -> list[Cell]:
    return [cell for cells in _macs_grid(scale).values() for cell in cells.values()]


def _macs_grid(scale: Scale) -> dict[float, dict[str, Cell]]:
    places = scale.places(places_of(["macs"]), SPARSITIES)
    return {
        sparsity: {
            "global": scale.cell(network, "dpf", sparsity),
            "layer": scale.cell(network, "dpf", sparsity, scope="layer"),
        }
        for network, sparsity in places
    }


def _macs_view(scale: Scale, library: Library) -> View:
    grid = _macs_grid(scale)
    printed = {(row.sparsity, row.scope): row.macs for row in published.table("macs")}
    rows: list[dict[str, Any]] = []
    lines = []
    for sparsity, cells in grid.items():
        for scope, cell in cells.items():
            found, paper = library.summary(cell, "macs_kept"), printed.get((sparsity, scope))  # type: ignore[arg-type]
            rows.append({"sparsity": sparsity, "scope": scope, **as_row(found), "paper": paper, "scale": scale.name})
            lines.append([percent(sparsity), scope, _millions(None if found is None else found.mean), _millions(paper)])
    text = table(["pruned", "threshold", "ours", "paper, ResNet-20"], lines)
    note = (
        "Multiply-accumulates per image in the paper's convention: convolutions, batch norm, ReLU and the last layer."
    )
    return View("table5", TITLES["table5"], f"{text}\n\n{note} {explained(scale)}", rows)


def _millions(count: float | None) -> str:
    return NOT_RUN if count is None else f"{count / 1e6:.2f} M"


def _imagenet(scale: Scale) -> Comparison:
    columns = (
        DENSE,
        Column("incremental"),
        # The paper's 7.06 M and 4.59 M parameters fit a dense last layer; a sparse one leaves 5.15 M and 2.60 M.
        Column("sparse-momentum", fields=(("include_last", False),), printed=True),
        Column("dpf"),
        Column("dpf", fields=(("include_last", True),), name="DPF, last layer too"),
    )
    return Comparison(columns, tuple(scale.places([("resnet50", 0.8), ("resnet50", 0.9)], (0.8, 0.9))))


def _imagenet_view(scale: Scale, library: Library) -> View:
    comparison = _imagenet(scale)
    lines, rows = [], []
    for place in comparison.places:
        for column in comparison.columns:
            cell = column.cell(scale, place)
            numbers = {name: library.summary(cell, name) for name in ("top1", "top5", "reached_ratio", "nonzeros")}
            paper = in_print("resnet50", column, place[1])
            left = numbers["nonzeros"]
            lines.append(
                [
                    percent(place[1]),
                    column.title,
                    accuracy(library, cell),
                    "–" if numbers["top5"] is None else number(numbers["top5"]),
                    "–" if paper is None or paper[0] is None else f"{paper[0]:.2f}",
                    NOT_RUN if left is None else quantity(left.mean),
                ]
            )
            rows.append(
                {
                    "sparsity": place[1],
                    "method": column.title,
                    "scale": scale.name,
                    **as_row(numbers["top1"], library.diverged(cell)),
                }
                | {name: found and found.mean for name, found in numbers.items() if name != "top1"}
                | {"paper_top1": paper and paper[0]}
            )
    head = ["pruned", "method", "top-1", "top-5", "paper, ResNet-50 on ImageNet", "parameters left"]
    note = explained(scale, "ResNet-50 on ImageNet, 90 epochs; its numbers for DSR and one for Incremental are others'")
    return View("table3", TITLES["table3"], f"{table(head, lines)}\n\n{note}", rows)


TITLES = {
    "table1": "Table 1: unstructured, against methods that move their masks",
    "table2": "Table 2: unstructured, against simple methods, with and without fine-tuning",
    "table3": "Table 3: ResNet-50 on ImageNet, unstructured",
    "table4": "Table 4: unstructured, at all sparsities",
    "table5": "Table 5: multiplications left by one threshold and by one for each layer",
    "table6": "Table 6: whole filters, against SFP",
    "methods": "Beyond the paper: every method on one network",
    "steady": "Beyond the paper: letting the mask settle, bounding the gradient of dead filters",
    "steady-filters": "Beyond the paper: whole filters, with the gradient of dead ones bounded; SFP without a ramp",
}

ITEMS = (
    _compared("table1", TITLES["table1"], REWIRING, ["cifar10-unstructured"], SPARSITIES[1:]),
    _compared("table2", TITLES["table2"], SIMPLE, ["cifar10-finetuned"], SPARSITIES),
    Item("table3", TITLES["table3"], _imagenet_view, lambda scale, library: _imagenet(scale).cells(scale)),
    _compared("table4", TITLES["table4"], REWIRING, ["cifar10-unstructured-complete"], SPARSITIES),
    Item("table5", TITLES["table5"], _macs_view, _macs_cells),
    _compared("table6", TITLES["table6"], STRUCTURED, ["cifar10-structured"], RATIOS),
    _compared("methods", TITLES["methods"], EVERY_METHOD, ["cifar10-finetuned"], SPARSITIES, ("resnet20",)),
    _compared("steady", TITLES["steady"], STEADY, ["cifar10-finetuned"], (0.9, 0.95, 0.98), ("resnet20",)),
    _compared(
        "steady-filters", TITLES["steady-filters"], STEADY_FILTERS, ["cifar10-structured"], RATIOS, ("resnet20",)
    ),
)
