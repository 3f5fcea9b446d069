"""What DPF's settings do: period against sparsity and batch size, one threshold or one for each layer."""

from __future__ import annotations

from typing import Any

from regrow.paper.cells import Cell, Library
from regrow.paper.compare import explained
from regrow.paper.heat import Heat
from regrow.paper.item import Item
from regrow.paper.scales import Scale
from regrow.paper.views import View
from regrow.report.tasks import percent

_PAPER_SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def _period(scale: Scale, network: str, sparsity: float, period: int, **fields: Any) -> Cell:
    """Return DPF with a mask every `period` steps; the usual period shares its run with the other tables."""
    if period != scale.usual_period:
        fields["every"] = period
    return scale.cell(network, "dpf", sparsity, **fields)


def period_sparsity(scale: Scale) -> Heat:
    """The period against the sparsity (the paper's first heat map)."""
    places = scale.places([("resnet20", sparsity) for sparsity in _PAPER_SPARSITIES], (0.9,))
    cells = {
        (percent(sparsity), str(period)): _period(scale, network, sparsity, period)
        for network, sparsity in places
        for period in scale.periods
    }
    return Heat("period-sparsity", _TITLES["period-sparsity"], "pruned", "steps between masks", cells, relative=True)


def period_batch(scale: Scale) -> Heat:
    """The period against the batch size at 80 % (the paper's second heat map)."""
    [(network, sparsity)] = scale.places([("resnet20", 0.8)], (0.8,))
    cells = {
        (str(batch), str(period)): _period(scale, network, sparsity, period, batch=batch)
        for batch in scale.batches
        for period in scale.periods
        if period <= 64
    }
    return Heat("period-batch", _TITLES["period-batch"], "batch", "steps between masks", cells)


def scope(scale: Scale) -> Heat:
    """One threshold against one for each layer (the paper's third heat map)."""
    places = scale.places([("resnet20", sparsity) for sparsity in _PAPER_SPARSITIES], (0.8, 0.9, 0.95))
    cells = {
        (words, percent(sparsity)): scale.cell(network, "dpf", sparsity, scope=chosen)
        for words, chosen in (("one for all layers", None), ("one for each layer", "layer"))
        for network, sparsity in places
    }
    return Heat("scope", _TITLES["scope"], "threshold", "pruned", cells)


_TITLES = {
    "period-sparsity": "Steps between masks and sparsity",
    "period-batch": "Steps between masks and batch size, 80 % pruned",
    "scope": "One threshold for all layers, or one for each",
}


def _item(name: str) -> Item:
    make = {"period-sparsity": period_sparsity, "period-batch": period_batch, "scope": scope}[name]

    def view(scale: Scale, library: Library) -> View:
        heat = make(scale)
        text = f"{heat.text(library)}\n\n{explained(scale)} The paper prints these as pictures, without numbers."
        return View(name, heat.title, text, heat.rows(library), heat.figures(library))

    return Item(name, _TITLES[name], view, lambda scale, library: list(make(scale).cells.values()))


ITEMS = tuple(map(_item, _TITLES))
