"""Pairs of methods: by a claim of the paper, or one of ours, the first of each pair should be ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.report.tables import percent
from reproduce.lottery import found_by, retrained
from reproduce.results import Cell, ResultStore, difference
from reproduce.scales import Scale
from reproduce.tables import Column
from reproduce.views import accuracy

_SIZE = "parameters, MACs left"
HEAD = ("", "top-1", _SIZE, "against", "top-1", _SIZE, "difference (by seed)", "verdict")


@dataclass(frozen=True)
class Pair:
    """Two cells of which the first should be ahead."""

    name: str
    ours: Cell
    other: str
    theirs: Cell

    def line(self, store: ResultStore) -> list[str]:
        """Return the comparison as a row of a table with the columns `HEAD`."""
        found = difference(store, self.ours, self.theirs)
        mine, others = ([accuracy(store, cell), _left(store, cell)] for cell in (self.ours, self.theirs))
        return [self.name, *mine, self.other, *others, str(found), found.verdict]


def _left(store: ResultStore, cell: Cell) -> str:
    """Return the kept fractions of parameters and MACs: accuracies at different sizes are not comparable."""
    pairs = (("nonzeros", "parameters"), ("macs_kept", "macs"))
    fractions = [store.fraction(cell, kept, whole) for kept, whole in pairs]
    return ", ".join("–" if fraction is None else f"{100 * fraction:.1f} %" for fraction in fractions)


def place(scale: Scale, sparsity: float) -> tuple[str, float]:
    """Return the network on which claims are checked: ResNet-20 or its stand-in."""
    return scale.networks(["resnet20"])[0], sparsity


def against(scale: Scale, name: str, ours: Column, others: Sequence[Column], sparsities: Iterable[float]) -> list[Pair]:
    """Return `ours` against each of the `others` at each sparsity, which the `{}` in `name` stands for."""
    return [
        Pair(name.format(percent(sparsity)), ours.cell(scale, at), other.title, other.cell(scale, at))
        for sparsity in sparsities
        for at in [place(scale, sparsity)]
        for other in others
    ]


def often(scale: Scale) -> tuple[tuple[str, Any], ...]:
    """Return the recipe fields for a mask update at every step; none if `every="auto"` already gives that."""
    return () if scale.usual_period == 1 else (("every", 1),)


def rarely(scale: Scale) -> tuple[tuple[str, Any], ...]:
    """Return the recipe fields for a mask update every 16 steps; none if `every="auto"` already gives that."""
    return () if scale.usual_period == 16 else (("every", 16),)


def retrainings(scale: Scale, store: ResultStore) -> list[Pair]:
    """DPF against its own masks, retrained."""
    pairs = []
    for unit, sparsities in (("weight", (0.9, 0.95)), ("filter", (0.4,))):
        for sparsity in sparsities:
            at = place(scale, sparsity)
            found = found_by(scale, at, unit)
            finished = Cell(tuple(recipe for recipe in found.recipes if store.outcome(recipe) is not None))
            what = "of the filters" if unit == "filter" else "of the weights"
            for kind in ("own weights", "fresh weights"):
                again = retrained(scale, store, at, unit, kind, "same epochs")
                pairs.append(Pair(f"DPF, {percent(sparsity)} {what}", finished, f"its mask from {kind}", again))
    return pairs
