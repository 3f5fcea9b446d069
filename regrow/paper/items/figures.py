"""The paper's figures of accuracy, of width as architecture search, of mask dynamics, of layers and of overhead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regrow.paper.cells import Cell, Library
from regrow.paper.compare import Comparison, explained, places_of
from regrow.paper.item import Item
from regrow.paper.items.tables import RATIOS, REWIRING, SPARSITIES, STRUCTURED
from regrow.paper.scales import Scale
from regrow.paper.views import View, accuracy, as_row, dynamics, layers, number, speeds, table, tasks_of, tradeoffs
from regrow.report.figures.figure import Figure, altair, compact, finish, new_chart, series_scales
from regrow.report.files import can_draw
from regrow.report.outcomes import Summary
from regrow.report.tasks import percent
from regrow.train.text import quantity

_COSTS = ("accuracy-sparsity", "accuracy-parameters", "accuracy-macs")
_WIDE = ("wrn28-2", "wrn28-4", "wrn28-8")
_DYNAMIC = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def _accuracy(name: str) -> Callable[[Scale], Comparison]:
    def unstructured(scale: Scale) -> Comparison:
        places = places_of(["cifar10-unstructured-complete"], networks=_WIDE[:1])
        return Comparison(REWIRING, tuple(scale.places(places, SPARSITIES)))

    def structured(scale: Scale) -> Comparison:
        places = places_of(["cifar10-structured"], networks=_WIDE)
        return Comparison(STRUCTURED, tuple(scale.places(places, RATIOS)))

    return {"accuracy": unstructured, "structured": structured}[name]


def _drawn(name: str) -> Item:
    """Return a comparison with its numbers drawn against sparsity, parameters and MACs."""
    make, title = _accuracy(name), TITLES[name]

    def view(scale: Scale, library: Library) -> View:
        comparison = make(scale)
        figures = tradeoffs(name, tasks_of(library, comparison.cells(scale)), _COSTS)
        return View(name, title, comparison.text(scale, library), comparison.rows(scale, library), figures)

    return Item(name, title, view, lambda scale, library: make(scale).cells(scale))


def width_cells(scale: Scale) -> dict[tuple[str, float], Cell]:
    """Return DPF on networks of several widths, at sparsities that leave about as many weights in each."""
    if scale.stand_in is None:
        places = places_of(["cifar10-unstructured-complete"], networks=_WIDE)
        return {
            (network, sparsity): scale.cell(network, "dpf", sparsity) for network, sparsity in dict.fromkeys(places)
        }
    network, usual = scale.stand_in.model, scale.stand_in.width or 16
    # Weights grow with the square of the width: 20 % of 8, 80 % of 16 and 95 % of 32 leave as many.
    widths = {0.5: (0.2, 0.6), 1.0: (0.8, 0.9), 2.0: (0.95, 0.975)}
    return {
        (f"{network}, width {round(usual * times)}", sparsity): scale.cell(
            network, "dpf", sparsity, width=scale.stand_in.width if times == 1.0 else round(usual * times)
        )
        for times, sparsities in widths.items()
        for sparsity in sparsities
    }


def _width_view(scale: Scale, library: Library) -> View:
    cells = width_cells(scale)
    found = {
        key: (library.summary(cell), library.summary(cell, "nonzeros"), library.summary(cell, "macs_kept"))
        for key, cell in cells.items()
    }
    lines = [
        [network, percent(sparsity), _count(left), _count(macs), accuracy(library, cells[network, sparsity])]
        for (network, sparsity), (_, left, macs) in found.items()
    ]
    rows: list[dict[str, Any]] = [
        {"network": network, "sparsity": sparsity, "scale": scale.name}
        | as_row(top1, library.diverged(cells[network, sparsity]))
        | {"parameters": left and left.mean, "macs": macs and macs.mean}
        for (network, sparsity), (top1, left, macs) in found.items()
    ]
    text = table(["network", "pruned", "parameters left", "MACs left", "DPF"], lines)
    note = "Of networks with as many parameters left, the wider one should be ahead."
    return View("width", TITLES["width"], f"{text}\n\n{note} {explained(scale)}", rows, _width_figure(rows))


def _width_figure(rows: list[dict[str, Any]]) -> tuple[Figure, ...]:
    """Return accuracy against the parameters that are left, one line for each width."""
    points = [
        {"series": row["network"], "x": row["parameters"], "mean": compact(row["mean"])}
        for row in rows
        if row["mean"] is not None
    ]
    if len(points) < 2 or not can_draw():
        return ()
    alt = altair()
    names = list(dict.fromkeys(point["series"] for point in points))
    color, _, shape = series_scales(names, lines=False)
    x = alt.X("x:Q", title="parameters left", scale=alt.Scale(type="log", nice=False, padding=20))
    y = alt.Y("mean:Q", title="top-1, %", scale=alt.Scale(zero=False))
    base = new_chart().encode(x=x, y=y, color=color)
    said = "; ".join(f"{point['series']}: {point['mean']} % with {quantity(point['x'])}" for point in points)
    chart = alt.layer(base.mark_line(), base.mark_point(filled=True, size=70, opacity=1).encode(shape=shape))
    spec = finish(chart.properties(description=said), points)
    return (Figure("width-parameters", "Accuracy and parameters, by width", "DPF, mean over seeds.", said, spec),)


def _count(summary: Summary | None) -> str:
    return "–" if summary is None else quantity(summary.mean)


def _moving(scale: Scale) -> dict[tuple[str, str, float], Cell]:
    """Return DPF and Incremental on the networks whose masks the paper watches."""
    places = scale.places([(n, s) for n in ("wrn28-2", "resnet20") for s in _DYNAMIC], SPARSITIES)
    return {
        (network, method, sparsity): scale.cell(network, method, sparsity)
        for network, sparsity in places
        for method in ("dpf", "incremental")
    }


def _dynamics_view(scale: Scale, library: Library) -> View:
    rows, lines = [], []
    for (network, method, sparsity), cell in _moving(scale).items():
        settled = settling(library, cell)
        rows.append({"network": network, "method": method, "sparsity": sparsity, "scale": scale.name, **settled})
        shares = settled["still_changing"]
        said = [_share(shares, part) for part in (0.25, 0.5, 0.75)]
        lines.append([network, method, percent(sparsity), *said])
    head = ["network", "method", "pruned", "still changing after 25 %", "after 50 %", "after 75 % of training"]
    note = (
        "Share of mask elements whose last change comes later than that. The paper: 5 % after epoch 157 of 200 at 95 %."
    )
    figures = dynamics("dynamics", tasks_of(library, _moving(scale).values()))
    return View("dynamics", TITLES["dynamics"], f"{table(head, lines)}\n\n{note} {explained(scale)}", rows, figures)


def settling(library: Library, cell: Cell) -> dict[str, Any]:
    """Return the share of mask elements that still change after each epoch, the mean over seeds; [] if not run."""
    epochs = cell.recipes[0].epochs
    curves = [outcome.final.get("still_changing") or [] for outcome in library.outcomes(cell)]
    curves = [curve[: epochs + 1] for curve in curves if len(curve) > epochs]
    means = [sum(shares) / len(shares) for shares in zip(*curves, strict=True)]
    return {"still_changing": means, "seeds": len(curves)}


def _share(curve: list[float], part: float) -> str:
    return "not run" if not curve else f"{100 * curve[round(part * (len(curve) - 1))]:.2g} %"


def _filters(scale: Scale) -> list[Cell]:
    places = scale.places([("wrn28-2", ratio) for ratio in (0.4, 0.5, 0.6, 0.7, 0.8)], RATIOS)
    return [scale.cell(network, "dpf", sparsity, unit="filter") for network, sparsity in places]


def _layers_view(scale: Scale, library: Library) -> View:
    rows, lines = [], []
    for cell in _filters(scale):
        for outcome in library.outcomes(cell)[:1]:
            last: dict[str, float] = outcome.records[-1]["layers"] if outcome.records else {}
            sparsity = cell.recipes[0].sparsity
            rows += [{"sparsity": sparsity, "layer": layer, "pruned": share} for layer, share in last.items()]
            lines += [
                [percent(sparsity), layer.removesuffix(".weight"), percent(round(share, 4))]
                for layer, share in last.items()
            ]
    text = table(["filters pruned", "layer", "weights pruned"], lines) if lines else "Not run."
    figures = layers("layers", tasks_of(library, _filters(scale)))
    return View("layers", TITLES["layers"], f"{text}\n\nOf the first seed. {explained(scale)}", rows, figures)


def _overhead(scale: Scale) -> dict[str, Cell]:
    [(network, sparsity)] = scale.places([("resnet50", 0.8)], (0.8,))
    return {method: scale.cell(network, method, sparsity) for method in ("dense", "dpf")}


def _overhead_view(scale: Scale, library: Library) -> View:
    cells = _overhead(scale)
    found = {method: _speed(library, cell) for method, cell in cells.items()}
    dense = found["dense"]
    lines = [
        [method, number(speed, digits=0), "–" if not (speed and dense) else f"{speed.mean / dense.mean:.3f}"]
        for method, speed in found.items()
    ]
    rows = [{"method": method, "scale": scale.name, **as_row(speed)} for method, speed in found.items()]
    text = table(["method", "images per second", "of dense"], lines)
    note = (
        "Runs share their machine with whatever else happens there; `python -m benchmarks.core` and `benchmarks.loop` "
        "measure side by side and are the better evidence. The paper's figure: the learning curve over time of "
        "ResNet-50, with and without DPF at 80 %."
    )
    return View(
        "overhead", TITLES["overhead"], f"{text}\n\n{note}", rows, speeds("overhead", tasks_of(library, cells.values()))
    )


def _speed(library: Library, cell: Cell) -> Summary | None:
    found = [outcome.run.images_per_second for outcome in library.outcomes(cell)]
    known = [speed for speed in found if speed is not None]
    return Summary.of(known) if known else None


TITLES = {
    "accuracy": "Accuracy against sparsity, parameters and MACs, unstructured",
    "structured": "Accuracy against sparsity, parameters and MACs, whole filters",
    "width": "Width as architecture search: DPF on networks of several widths",
    "dynamics": "How masks move: last changes, δ, flips and overlap, DPF and Incremental",
    "layers": "The sparsity of every layer when whole filters are pruned",
    "overhead": "What DPF costs in time",
}

ITEMS = (
    _drawn("accuracy"),
    _drawn("structured"),
    Item("width", TITLES["width"], _width_view, lambda scale, library: list(width_cells(scale).values())),
    Item("dynamics", TITLES["dynamics"], _dynamics_view, lambda scale, library: list(_moving(scale).values())),
    Item("layers", TITLES["layers"], _layers_view, lambda scale, library: _filters(scale)),
    Item("overhead", TITLES["overhead"], _overhead_view, lambda scale, library: list(_overhead(scale).values())),
)
