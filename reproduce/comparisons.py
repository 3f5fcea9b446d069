"""Pairs of methods of which the first should be ahead, by the paper's claims and by ours."""

from __future__ import annotations

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
_CONSTANT = Column("sfp", unit="filter", fields=(("ramp_end", 0.0),), name="SFP, constant ratio")


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
    shares = [store.share(cell, kept, whole) for kept, whole in (("nonzeros", "parameters"), ("macs_kept", "macs"))]
    return ", ".join("–" if share is None else f"{100 * share:.1f} %" for share in shares)


def place(scale: Scale, sparsity: float) -> tuple[str, float]:
    """Return the network on which claims are checked: ResNet-20 or its stand-in."""
    return scale.networks(["resnet20"])[0], sparsity


def ahead(scale: Scale) -> list[Pair]:
    """DPF against the others at 90 %."""
    at = place(scale, 0.9)
    dpf = Column("dpf").cell(scale, at)
    others = (
        Column("oneshot", finetuned=True),
        *(Column(method) for method in ("snip", "incremental", "sparse-momentum", "dsr")),
    )
    return [Pair("DPF, 90 %", dpf, other.title, other.cell(scale, at)) for other in others]


def further(scale: Scale) -> list[Pair]:
    """DPF against methods that the paper does not have in its tables."""
    at = place(scale, 0.9)
    dpf = Column("dpf").cell(scale, at)
    return [Pair("DPF, 90 %", dpf, other.title, other.cell(scale, at)) for other in (Column("set"), Column("rigl"))]


def helped(scale: Scale) -> list[Pair]:
    """DPF with and without fine-tuning at 95 %."""
    at = place(scale, 0.95)
    plain, tuned = Column("dpf"), Column("dpf", finetuned=True)
    return [Pair("DPF + FT, 95 %", tuned.cell(scale, at), plain.title, plain.cell(scale, at))]


def finetuned(scale: Scale) -> list[Pair]:
    """Fine-tuned DPF against the others at 95 %."""
    at = place(scale, 0.95)
    tuned = Column("dpf", finetuned=True).cell(scale, at)
    others = (Column("incremental"), Column("incremental", finetuned=True), Column("oneshot", finetuned=True))
    return [Pair("DPF + FT, 95 %", tuned, other.title, other.cell(scale, at)) for other in others]


def scopes(scale: Scale) -> list[Pair]:
    """One threshold against one for each layer."""
    pairs = []
    for sparsity in (0.9, 0.95):
        network, _ = at = place(scale, sparsity)
        layer = scale.cell(network, "dpf", sparsity, scope="layer")
        pairs.append(Pair(f"global, {percent(sparsity)}", Column("dpf").cell(scale, at), "layer by layer", layer))
    return pairs


def structured(scale: Scale) -> list[Pair]:
    """DPF against SFP on whole filters; with the ramp of the paper's comparison, and as its authors ran it."""
    others = (Column("sfp", unit="filter"), _CONSTANT)
    return [
        Pair(
            f"DPF, {percent(ratio)} of the filters",
            Column("dpf", unit="filter").cell(scale, at),
            other.title,
            other.cell(scale, at),
        )
        for ratio in (0.2, 0.4)
        for at in [place(scale, ratio)]
        for other in others
    ]


def settled(scale: Scale) -> list[Pair]:
    """Beyond the paper: the remedies against plain DPF and against Incremental."""
    pairs = []
    for sparsity in (0.9, 0.95, 0.98):
        at = place(scale, sparsity)
        for option in ("settle=0.1", "stabilize=true"):
            remedy = Column("dpf", fields=(("options", (option,)),)).cell(scale, at)
            for other in (Column("dpf"), Column("incremental")):
                name = f"DPF, {option}, {percent(sparsity)}"
                pairs.append(Pair(name, remedy, other.title, other.cell(scale, at)))
    return pairs


def every_step(scale: Scale) -> list[Pair]:
    """Beyond the paper: masks at (nearly) every step against one every 16 steps, and against Incremental."""
    ours, usual = Column("dpf", fields=often(scale)), Column("dpf", fields=rarely(scale), name="DPF, every=16")
    return [
        Pair(f"DPF, every step, {percent(sparsity)}", ours.cell(scale, at), other.title, other.cell(scale, at))
        for sparsity in (0.9, 0.95)
        for at in [place(scale, sparsity)]
        for other in (usual, Column("incremental"))
    ]


def settled_every_step(scale: Scale) -> list[Pair]:
    """Beyond the paper: mask updates at every step that stop before the end, against the alternatives."""
    ours = Column("dpf", fields=(*often(scale), ("options", ("settle=0.1",))))
    others = (
        Column("dpf"),
        Column("dpf", finetuned=True),
        Column("incremental"),
        Column("incremental", finetuned=True),
    )
    return [
        Pair(f"DPF, settle=0.1, {percent(sparsity)}", ours.cell(scale, at), other.title, other.cell(scale, at))
        for sparsity in (0.9, 0.95)
        for at in [place(scale, sparsity)]
        for other in others
    ]


def extreme(scale: Scale) -> list[Pair]:
    """Beyond the paper: at 98 %, masks at every step that settle, and bounded gradients of dead filters."""
    network, sparsity = at = place(scale, 0.98)
    fields = dict(often(scale))
    remedy = scale.cell(network, "dpf", sparsity, **fields, options=("settle=0.1", "stabilize=true"))
    stable = Column("dpf", fields=(("options", ("stabilize=true",)),), name="DPF, stabilize")
    others = (Column("dpf"), stable, Column("incremental"))
    name = f"DPF, settle=0.1, stabilize, {percent(sparsity)}"
    return [Pair(name, remedy, other.title, other.cell(scale, at)) for other in others]


def often(scale: Scale) -> tuple[tuple[str, Any], ...]:
    """Return the recipe fields for a mask at every step, which the automatic period of short trainings is already."""
    return () if scale.usual_period == 1 else (("every", 1),)


def rarely(scale: Scale) -> tuple[tuple[str, Any], ...]:
    """Return the recipe fields for a mask every 16 steps, the default at the paper's scale."""
    return () if scale.usual_period == 16 else (("every", 16),)


def settled_filters(scale: Scale) -> list[Pair]:
    """Beyond the paper: on whole filters, DPF with bounded gradients against plain DPF and both kinds of SFP."""
    remedy = Column("dpf", unit="filter", fields=(("options", ("stabilize=true",)),))
    others = (
        Column("dpf", unit="filter"),
        Column("sfp", unit="filter"),
        _CONSTANT,
    )
    return [
        Pair(
            f"DPF, stabilize, {percent(ratio)} of the filters",
            remedy.cell(scale, at),
            other.title,
            other.cell(scale, at),
        )
        for ratio in (0.2, 0.4)
        for at in [place(scale, ratio)]
        for other in others
    ]


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
