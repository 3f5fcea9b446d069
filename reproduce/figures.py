"""The paper's figures: accuracy, width, mask dynamics, layers, overhead, and heat maps of DPF's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from regrow.report.figures.base import Figure, altair, compact, finish, new_chart, series_scales
from regrow.report.render import can_draw
from regrow.report.tables import percent
from regrow.runs.outcomes import Summary
from regrow.text import quantity
from reproduce.experiments import Experiment
from reproduce.results import Cell, ResultStore
from reproduce.scales import Place, Scale
from reproduce.tables import RATIOS, REWIRING, SPARSITIES, STRUCTURED, compared, explained, machines, places_of
from reproduce.views import Content, accuracy, as_row, dynamics, layers, number, speeds, table, tasks_of

_WIDE = ("wrn28-2", "wrn28-4", "wrn28-8")
_DYNAMIC = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def width_cells(scale: Scale) -> dict[tuple[str, float], Cell]:
    """Return DPF on networks of several widths, at sparsities that leave about the same number of weights."""
    if scale.stand_in is None:
        places = places_of("cifar10-unstructured-complete", networks=_WIDE)
        return {
            (network, sparsity): scale.cell(network, "dpf", sparsity) for network, sparsity in dict.fromkeys(places)
        }
    network, usual = scale.stand_in.model, scale.stand_in.width or 16
    # Weights grow with the square of the width: 20 %, 80 % and 95 % at widths 8, 16 and 32 leave the same number.
    widths = {0.5: (0.2, 0.6), 1.0: (0.8, 0.9), 2.0: (0.95, 0.975)}
    return {
        (f"{network}, width {round(usual * times)}", sparsity): scale.cell(
            network, "dpf", sparsity, width=scale.stand_in.width if times == 1.0 else round(usual * times)
        )
        for times, sparsities in widths.items()
        for sparsity in sparsities
    }


def _width_content(scale: Scale, store: ResultStore) -> Content:
    cells = width_cells(scale)
    found = {
        key: (store.summary(cell), store.summary(cell, "nonzeros"), store.summary(cell, "macs_kept"))
        for key, cell in cells.items()
    }
    lines = [
        [network, percent(sparsity), _count(left), _count(macs), accuracy(store, cells[network, sparsity])]
        for (network, sparsity), (_, left, macs) in found.items()
    ]
    rows: list[dict[str, Any]] = [
        {"network": network, "sparsity": sparsity, "scale": scale.name}
        | as_row(top1, store.diverged(cells[network, sparsity]))
        | {"parameters": left and left.mean, "macs": macs and macs.mean}
        for (network, sparsity), (top1, left, macs) in found.items()
    ]
    text = table(["network", "pruned", "parameters left", "MACs left", "DPF"], lines)
    note = "Of two networks with the same number of remaining parameters, the wider one should be ahead."
    return f"{text}\n\n{note} {explained(scale)}", rows, _width_figure(rows)


def _width_figure(rows: list[dict[str, Any]]) -> tuple[Figure, ...]:
    """Return the figure of accuracy against non-zero parameters, one line for each width."""
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
    """Return DPF and Incremental on the networks of the paper's study of mask dynamics."""
    places = scale.places([(n, s) for n in ("wrn28-2", "resnet20") for s in _DYNAMIC], SPARSITIES)
    return {
        (network, method, sparsity): scale.cell(network, method, sparsity)
        for network, sparsity in places
        for method in ("dpf", "incremental")
    }


def _dynamics_content(scale: Scale, store: ResultStore) -> Content:
    rows, lines = [], []
    for (network, method, sparsity), cell in _moving(scale).items():
        settled = settling(store, cell)
        rows.append({"network": network, "method": method, "sparsity": sparsity, "scale": scale.name, **settled})
        fractions = settled["still_changing"]
        said = [fraction_moving(fractions, part) for part in (0.25, 0.5, 0.75)]
        lines.append([network, method, percent(sparsity), *said])
    head = ["network", "method", "pruned", "still changing after 25 %", "after 50 %", "after 75 % of training"]
    note = "Fraction of mask elements that change after that. The paper: 5 % after epoch 157 of 200 at 95 %."
    figures = dynamics("dynamics", tasks_of(store, _moving(scale).values()))
    return f"{table(head, lines)}\n\n{note} {explained(scale)}", rows, figures


def settling(store: ResultStore, cell: Cell) -> dict[str, Any]:
    """Return the mean fraction of mask elements that still change after each epoch; [] if not run."""
    epochs = cell.recipes[0].epochs
    curves = [outcome.final.get("still_changing") or [] for outcome in store.outcomes(cell)]
    curves = [curve[: epochs + 1] for curve in curves if len(curve) > epochs]
    means = [sum(epoch) / len(epoch) for epoch in zip(*curves, strict=True)]
    return {"still_changing": means, "seeds": len(curves)}


def fraction_moving(curve: list[float], part: float) -> str:
    """Return the fraction that still changes after this part of training."""
    return "not run" if not curve else f"{100 * curve[round(part * (len(curve) - 1))]:.2g} %"


def _filters(scale: Scale) -> dict[Place, Cell]:
    places = scale.places([("wrn28-2", ratio) for ratio in (0.4, 0.5, 0.6, 0.7, 0.8)], RATIOS)
    return {(network, sparsity): scale.cell(network, "dpf", sparsity, unit="filter") for network, sparsity in places}


def _layers_content(scale: Scale, store: ResultStore) -> Content:
    rows, lines = [], []
    for (_, sparsity), cell in _filters(scale).items():
        for outcome in store.outcomes(cell)[:1]:
            last: dict[str, float] = outcome.records[-1]["layers"] if outcome.records else {}
            rows += [{"sparsity": sparsity, "layer": layer, "pruned": fraction} for layer, fraction in last.items()]
            lines += [
                [percent(sparsity), layer.removesuffix(".weight"), percent(round(fraction, 4))]
                for layer, fraction in last.items()
            ]
    text = table(["filters pruned", "layer", "weights pruned"], lines) if lines else "Not run."
    figures = layers("layers", tasks_of(store, _filters(scale).values()))
    return f"{text}\n\nOf the first seed. {explained(scale)}", rows, figures


def _overhead(scale: Scale) -> dict[str, Cell]:
    [(network, sparsity)] = scale.places([("resnet50", 0.8)], (0.95,))
    return {method: scale.cell(network, method, sparsity) for method in ("dense", "dpf")}


def _overhead_content(scale: Scale, store: ResultStore) -> Content:
    cells = _overhead(scale)
    found = {method: _speed(store, cell) for method, cell in cells.items()}
    dense = found["dense"]
    lines = [
        [method, number(speed, digits=0), "–" if not (speed and dense) else f"{speed.mean / dense.mean:.3f}"]
        for method, speed in found.items()
    ]
    rows = [{"method": method, "scale": scale.name, **as_row(speed)} for method, speed in found.items()]
    text = table(["method", "images per second", "of dense"], lines)
    note = (
        "Other processes ran on the same machine at some of the time, so the lines differ in more than the method; "
        "`python -m benchmarks.core` and `benchmarks.loop` measure side by side and are the better evidence. The "
        "paper's figure: the learning curve over time of ResNet-50, with and without DPF at 80 %; on small networks, "
        "DPF at 95 %."
    )
    figures = (*speeds("overhead", tasks_of(store, cells.values())), *_time_figure(store, cells))
    return f"{text}\n\n{note}", rows, figures


def _time_figure(store: ResultStore, cells: Mapping[str, Cell]) -> tuple[Figure, ...]:
    """Return the figure of accuracy against the time spent on training, one line for each method."""
    points = [
        {"series": method, "x": compact(hours), "mean": compact(top1)}
        for method, cell in cells.items()
        for hours, top1 in _over_time(store, cell)
    ]
    if len({point["series"] for point in points}) < 2 or not can_draw():
        return ()
    alt = altair()
    color, dashes, _ = series_scales(list(cells), lines=True)
    x = alt.X("x:Q", title="hours of training", scale=alt.Scale(nice=False))
    y = alt.Y("mean:Q", title="top-1, %", scale=alt.Scale(zero=False))
    ends = {point["series"]: point for point in points}
    said = "; ".join(f"{name}: {end['mean']:.2f} % after {end['x']:.3g} hours" for name, end in ends.items())
    title = "Accuracy against time"
    chart = new_chart().mark_line().encode(x=x, y=y, color=color, strokeDash=dashes).properties(description=said)
    caption = "Top-1 accuracy after every epoch against the time of the training loop, mean over seeds."
    return (Figure("overhead-time", title, caption, said, finish(chart, points)),)


def _over_time(store: ResultStore, cell: Cell) -> list[tuple[float, float]]:
    """Return hours and accuracy after every epoch, mean over seeds."""
    curves = [outcome.records for outcome in store.outcomes(cell) if outcome.records]
    curves = [epochs for epochs in curves if "seconds" in epochs[0]]  # older records have no times
    found, seconds = [], 0.0
    for epochs in zip(*curves, strict=False):
        seconds += fmean(epoch["seconds"] for epoch in epochs)
        found.append((seconds / 3600, fmean(epoch["top1"] for epoch in epochs)))
    return found


# Compressors by the text in recipes, with their names in the table.
_COMPRESSORS = {
    "sign": "1 bit: the sign times the mean magnitude",
    "2 bits": "2 bits: three levels",
    "4 bits": "4 bits: 15 levels",
    "rank 8": "rank 8",
}


def _compressed(scale: Scale) -> dict[str, Cell]:
    """Return trainings with feedback from several compressors, the dense network and DPF at 90 %."""
    [(network, sparsity)] = scale.places([("resnet20", 0.9)], (0.9,))
    cells = {"dense": scale.cell(network, "dense"), "DPF, 90 %": scale.cell(network, "dpf", sparsity)}
    soft = scale.cell(network, "dpf", sparsity, options=("threshold=soft",))
    others = {
        words: scale.cell(network, "feedback", options=(f'compressor="{name}"',))
        for name, words in _COMPRESSORS.items()
    }
    return {**cells, "DPF, 90 %, soft threshold": soft, **others}


def _compressors_content(scale: Scale, store: ResultStore) -> Content:
    cells = _compressed(scale)
    rows = [
        {"compressor": words, "scale": scale.name, "delta": (error := store.summary(cell, "delta")) and error.mean}
        | as_row(store.summary(cell), store.diverged(cell))
        for words, cell in cells.items()
    ]
    lines = [[words, accuracy(store, cell), _error(store, cell)] for words, cell in cells.items()]
    text = table(["compressor C", "top-1", "error of C at the end, δ"], lines)
    used = machines(store, {words: [cell] for words, cell in cells.items()})
    note = (
        "Section 4 holds for any compressor: the gradient at C(w) updates w. All train with DPF's learning rate. "
        "Bits count the levels of a weight, not the size of a file. The paper has no numbers for them."
    )
    return f"{text}\n\n{note} Ours: {scale.about}. {used}", rows, ()


def _error(store: ResultStore, cell: Cell) -> str:
    """Return δ, which records without curves have only for runs without fine-tuning."""
    error = store.summary(cell, "delta")
    return "–" if error is None else number(error, digits=4)


def _speed(store: ResultStore, cell: Cell) -> Summary | None:
    found = [outcome.run.images_per_second for outcome in store.outcomes(cell)]
    known = [speed for speed in found if speed is not None]
    return Summary.of(known) if known else None


_PAPER_SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def _period(scale: Scale, network: str, sparsity: float, period: int, **fields: Any) -> Cell:
    """Return DPF with a mask update every `period` steps; the default period shares its run with the tables."""
    own_batch = scale.recipe(network, "dpf").batch
    if period != scale.usual_period or fields.get("batch", own_batch) != own_batch:  # "auto" depends on the batch
        fields["every"] = period
    return scale.cell(network, "dpf", sparsity, **fields)


def period_sparsity(scale: Scale) -> HeatMap:
    """Return the heat map of period and sparsity (the paper's first)."""
    places = scale.places([("resnet20", sparsity) for sparsity in _PAPER_SPARSITIES], (0.9,))
    cells = {
        (percent(sparsity), str(period)): _period(scale, network, sparsity, period)
        for network, sparsity in places
        for period in scale.periods
    }
    return HeatMap("pruned", "steps between masks", cells, relative=True)


def period_batch(scale: Scale) -> HeatMap:
    """Return the heat map of period and batch size at 80 % (the paper's second)."""
    [(network, sparsity)] = scale.places([("resnet20", 0.8)], (0.8,))
    cells = {
        (str(batch), str(period)): _period(scale, network, sparsity, period, batch=batch)
        for batch in scale.batches
        for period in scale.periods
        if period <= 64
    }
    return HeatMap("batch", "steps between masks", cells)


def scope(scale: Scale) -> HeatMap:
    """Return the heat map of global and per-layer thresholds (the paper's third)."""
    places = scale.places([("resnet20", sparsity) for sparsity in _PAPER_SPARSITIES], (0.8, 0.9, 0.95))
    cells = {
        (words, percent(sparsity)): scale.cell(network, "dpf", sparsity, scope=chosen)
        for words, chosen in (("one for all layers", None), ("one for each layer", "layer"))
        for network, sparsity in places
    }
    return HeatMap("threshold", "pruned", cells)


def _heat_map(name: str, title: str, make: Callable[[Scale], HeatMap]) -> Experiment:
    def content(scale: Scale, store: ResultStore) -> Content:
        heat = make(scale)
        text = f"{heat.text(store)}\n\n{explained(scale)} The paper prints these as pictures, without numbers."
        return text, heat.rows(store), heat.figures(store, name, title)

    return Experiment(name, title, content, lambda scale, store: list(make(scale).cells.values()))


@dataclass(frozen=True)
class HeatMap:
    """Accuracy for two settings, as a table and as a heat map; cells are named by row and column."""

    row: str
    column: str
    cells: Mapping[tuple[str, str], Cell]
    relative: bool = False
    """Whether colors show the distance to the best of the row instead of the accuracy."""

    @property
    def across(self) -> list[str]:
        """The columns."""
        return list(dict.fromkeys(column for _, column in self.cells))

    @property
    def down(self) -> list[str]:
        """The rows."""
        return list(dict.fromkeys(row for row, _ in self.cells))

    def text(self, store: ResultStore) -> str:
        """Return the accuracies as a table."""
        lines = [[row, *(accuracy(store, self.cells[row, column]) for column in self.across)] for row in self.down]
        return table([f"{self.row} \\ {self.column}", *self.across], lines)

    def rows(self, store: ResultStore) -> list[dict[str, Any]]:
        """Return the accuracies for JSON."""
        return [
            {self.row: row, self.column: column, **as_row(store.summary(cell), store.diverged(cell))}
            for (row, column), cell in self.cells.items()
        ]

    def figures(self, store: ResultStore, name: str, title: str) -> tuple[Figure, ...]:
        """Return the heat map of finished runs; empty if there are fewer than two or the packages are missing."""
        points = self._points(store)
        if len(points) < 2 or not can_draw():
            return ()
        said = "; ".join(f"{point['row']}, {point['column']}: {point['text']}" for point in points)
        description = f"{title}. {said}."
        chart = _chart(self, points).properties(description=description)
        shown = "the distance to the best of its row" if self.relative else "top-1 accuracy"
        caption = f"Colors: {shown}, percent. Fields without a run are empty."
        return (Figure(name, title, caption, description, finish(chart, points, height=40 * len(self.down))),)

    def _points(self, store: ResultStore) -> list[dict[str, Any]]:
        found = {key: summary for key, cell in self.cells.items() if (summary := store.summary(cell)) is not None}
        best = {row: max((s.mean for (r, _), s in found.items() if r == row), default=0.0) for row in self.down}
        points = []
        for (row, column), summary in found.items():
            value = summary.mean - (best[row] if self.relative else 0.0)
            points.append({"row": row, "column": column, "value": compact(value), "text": f"{value:.2f}"})
        return points


def _chart(heat: HeatMap, points: Sequence[Mapping[str, Any]]) -> Any:
    alt = altair()
    middle = (min(point["value"] for point in points) + max(point["value"] for point in points)) / 2
    base = new_chart().encode(
        x=alt.X("column:N", title=heat.column, sort=heat.across, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("row:N", title=heat.row, sort=heat.down),
    )
    color = alt.Color("value:Q", title=None, scale=alt.Scale(scheme="blues", zero=False), legend=None)
    dark = alt.condition(f"datum.value > {middle}", alt.value("white"), alt.value("black"))
    return alt.layer(base.mark_rect().encode(color=color), base.mark_text().encode(text="text:N", color=dark))


TITLES = {
    "width": "Width as architecture search: DPF on networks of several widths",
    "dynamics": "How masks move: last changes, δ, flips and overlap, DPF and Incremental",
    "layers": "The sparsity of every layer when whole filters are pruned",
    "overhead": "What DPF costs in time: speed, and accuracy against time",
    "compressors": "Beyond the paper: feedback from other compressors",
}


def _experiment(
    name: str,
    content: Callable[[Scale, ResultStore], Content],
    cells: Callable[[Scale], Mapping[Any, Cell]],
) -> Experiment:
    return Experiment(name, TITLES[name], content, lambda scale, store: list(cells(scale).values()))


EXPERIMENTS = (
    compared("accuracy", REWIRING, "cifar10-unstructured-complete", SPARSITIES, _WIDE[:1], drawn=True),
    compared("structured", STRUCTURED, "cifar10-structured", RATIOS, _WIDE, drawn=True),
    _experiment("width", _width_content, width_cells),
    _experiment("dynamics", _dynamics_content, _moving),
    _experiment("layers", _layers_content, _filters),
    _experiment("overhead", _overhead_content, _overhead),
    _experiment("compressors", _compressors_content, _compressed),
    _heat_map("period-sparsity", "Steps between masks and sparsity", period_sparsity),
    _heat_map("period-batch", "Steps between masks and batch size, 80 % pruned", period_batch),
    _heat_map("scope", "One threshold for all layers, or one for each", scope),
)
