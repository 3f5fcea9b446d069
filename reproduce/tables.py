"""The paper's tables 1 to 6, and tables of more methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from regrow.report import published
from regrow.report.tables import Published, method_title, percent
from regrow.text import quantity
from reproduce.experiments import Experiment
from reproduce.results import Cell, ResultStore, cpus
from reproduce.scales import UNSCALED, Place, Scale, published_recipe
from reproduce.views import NOT_RUN, Content, accuracy, as_row, number, table, tasks_of, tradeoffs


@dataclass(frozen=True)
class Column:
    """A column of a table: a method with its settings."""

    method: str
    finetuned: bool = False
    unit: Literal["weight", "filter"] = "weight"
    fields: tuple[tuple[str, Any], ...] = ()
    """More fields of its recipes."""
    printed: bool = False
    """Whether the paper's number of the method has these fields as well."""
    name: str = ""
    """Heading, if not the name of the method."""

    @property
    def title(self) -> str:
        """The heading."""
        return self.name or method_title(self.method) + (" + FT" if self.finetuned else "")

    def cell(self, scale: Scale, place: Place) -> Cell:
        """Return the runs behind the column's number at `place`."""
        network, sparsity = place
        fields = dict(self.fields)
        if self.unit == "filter" and self.method not in ("sfp", "dense"):
            fields["unit"] = "filter"
        return scale.cell(network, self.method, sparsity, finetuned=self.finetuned, **fields)


DENSE = Column("dense")


@dataclass(frozen=True)
class MethodComparison:
    """A table of methods (columns) at networks and sparsities (places), and its runs."""

    columns: tuple[Column, ...]
    places: tuple[Place, ...]

    def cells(self, scale: Scale) -> list[Cell]:
        """Return all runs of the table."""
        return [column.cell(scale, place) for place in self.places for column in self.columns]

    def text(self, scale: Scale, store: ResultStore) -> str:
        """Return the table, with our row above the paper's."""
        lines = [line for place in self.places for line in self._lines(scale, store, place)]
        head = ["network", "pruned", "from", *(column.title for column in self.columns)]
        named = self.named(scale)
        notes = [learning_rates(scale, self), periods(scale, named), mask_updates(store, named), machines(store, named)]
        return "\n\n".join([table(head, lines), explained(scale), *filter(None, notes)])

    def named(self, scale: Scale) -> dict[str, list[Cell]]:
        """Return the runs of each column."""
        return {column.title: [column.cell(scale, place) for place in self.places] for column in self.columns}

    def rows(self, scale: Scale, store: ResultStore) -> list[dict[str, Any]]:
        """Return the numbers of the table, one for each place and column."""
        found = []
        for place in self.places:
            for column in self.columns:
                cell = column.cell(scale, place)
                printed = in_print(scale.beside(place[0]), column, place[1])
                found.append(
                    {
                        "network": place[0],
                        "sparsity": place[1],
                        "method": column.title,
                        "scale": scale.name,
                        "lr": cell.recipes[0].lr,
                        **as_row(store.summary(cell), store.diverged(cell)),
                        "mask_updates": updates(store, cell),
                        "parameters_left": store.fraction(cell, "nonzeros", "parameters"),
                        "paper_network": scale.beside(place[0]),
                        "paper_mean": printed and printed.mean,
                        "paper_std": printed and printed.std,
                    }
                )
        return found

    def _lines(self, scale: Scale, store: ResultStore, place: Place) -> list[list[str]]:
        network, sparsity = place
        ours = [accuracy(store, column.cell(scale, place)) for column in self.columns]
        beside = scale.beside(network)
        theirs = [printed(beside, column, sparsity) for column in self.columns]
        lines = [[network, percent(sparsity), "ours", *ours]]
        return lines if all(cell == "–" for cell in theirs) else [*lines, [beside, percent(sparsity), "paper", *theirs]]


def in_print(network: str, column: Column, sparsity: float) -> Published | None:
    """Return the paper's accuracy, whose mean is None if it did not converge; None if not reported."""
    if column.fields and not column.printed:
        return None
    return published.reported(network, column.method, sparsity, column.finetuned, unit=column.unit, own=True)


def explained(scale: Scale, paper: str = "") -> str:
    """Return a note on how our numbers and the paper's were measured."""
    ours = "Ours: " + scale.about
    rest = "final epoch at the reached sparsity, mean ± standard deviation, the number of seeds in brackets"
    if scale.stand_in is None:
        return f"{ours}; {rest}. Paper: {paper or 'three seeds'}."
    theirs = paper or f"ResNet-20, {published_recipe('resnet20').epochs} epochs (fine-tuning: 60 more), three seeds"
    return (
        f"{ours}; {rest}. Paper: {theirs}. These are different experiments: the order of the methods can be compared, "
        "the numbers cannot."
    )


def learning_rates(scale: Scale, comparison: MethodComparison) -> str:
    """Return a note on the learning rates and how they were chosen."""
    found: dict[str, list[str]] = {}
    for column in comparison.columns:
        for network in dict.fromkeys(network for network, _ in comparison.places):
            lr = scale.recipe(network, column.method).lr
            how = "" if scale.tuned(network, column.method) else " (not tuned)"
            found.setdefault(f"{lr:g}{how}", []).append(method_title(column.method))
    said = [f"{rate} for {', '.join(dict.fromkeys(methods))}" for rate, methods in found.items()]
    return f"Learning rates: {'; '.join(said)}."


def periods(scale: Scale, named: Mapping[str, Sequence[Cell]]) -> str:
    """Return a note on methods whose update period is not scaled to the length of training; empty without them."""
    if scale.stand_in is None or scale.stand_in.every != "auto":
        return ""
    methods = {title: cells[0].recipes[0] for title, cells in named.items()}
    said = [
        f"{title} keeps its own, because {UNSCALED[recipe.method]}"
        for title, recipe in methods.items()
        if recipe.every != "auto" and recipe.method in UNSCALED
    ]
    return f"Update periods are scaled to the length of training; {'; '.join(said)}." if said else ""


def mask_updates(store: ResultStore, named: Mapping[str, Sequence[Cell]]) -> str:
    """Return a note on how often each method updated its mask; empty if nothing was run."""
    found: dict[int, list[str]] = {}
    for title, cells in named.items():
        for cell in cells:
            count = updates(store, cell)
            if count is not None and cell.recipes[0].method != "dense":
                found.setdefault(count, []).append(title)
    said = [f"{count:,} by {', '.join(dict.fromkeys(titles))}" for count, titles in sorted(found.items())]
    return f"Mask updates in a training: {'; '.join(said)}." if said else ""


def machines(store: ResultStore, named: Mapping[str, Sequence[Cell]]) -> str:
    """Return a note on the CPUs behind named numbers; empty if nothing was run."""
    found: dict[str, list[str]] = {}
    runs = {title: store.runs(cells) for title, cells in named.items()}
    for title, several in runs.items():
        if several:
            found.setdefault(_listed({cpu for run in several for cpu in cpus(run)}), []).append(title)
    known = [run for several in runs.values() for run in several]
    used = {cpu for run in known for cpu in cpus(run)}
    if len(used) < 2:
        return "".join(f"All were trained on {cpu}." for cpu in used)
    if all(store.alike(run, used) for run in known):
        return f"Trained on {_listed(used)}, on which the same training gave the same numbers."
    said = [f"on {cpu}: {', '.join(titles)}" for cpu, titles in found.items()]
    return f"CPUs differ, and round differently: {'; '.join(said)}."


def _listed(used: Iterable[str]) -> str:
    return " and ".join(sorted(used))


def updates(store: ResultStore, cell: Cell) -> int | None:
    """Return the mean number of mask updates; None if it was not recorded."""
    updates = store.summary(cell, "mask_updates")
    return None if updates is None else round(updates.mean)


def places_of(name: str, *, networks: Sequence[str] | None = None) -> list[Place]:
    """Return the networks and sparsities of a published table, in the paper's order."""
    rows = published.table(name)
    return [(row.network, row.sparsity) for row in rows if networks is None or row.network in networks]


def printed(network: str, column: Column, sparsity: float) -> str:
    """Return the paper's number as text."""
    found = in_print(network, column, sparsity)
    return "–" if found is None else str(found)


DPF, DPF_TUNED = Column("dpf"), Column("dpf", finetuned=True)
INCREMENTAL, INCREMENTAL_TUNED = Column("incremental"), Column("incremental", finetuned=True)
ONESHOT = Column("oneshot", finetuned=True)
ACDC = Column("acdc")
SETTLED = Column("dpf", fields=(("settle", 0.1),), name="DPF, settle=0.1")
SOFT = Column("dpf", fields=(*SETTLED.fields, ("options", ("threshold=soft",))), name="DPF, soft, settle=0.1")
STABLE = Column("dpf", fields=(("stabilize", True),), name="DPF, stabilize")
DPF_FILTERS, SFP = Column("dpf", unit="filter"), Column("sfp", unit="filter")
STABLE_FILTERS = replace(STABLE, unit="filter")
SFP_CONSTANT = replace(SFP, fields=(("ramp_end", 0.0),), name="SFP, constant ratio")

# The paper's protocol as it was run here: 16 is DPF's own period, and channels_last makes it faster.
PROTOCOL = tuple(
    replace(
        column,
        fields=(("every", 16), ("channels_last", True)),
        printed=True,
        name=f"{column.title} (300 epochs, the paper's protocol)",
    )
    for column in (DENSE, DPF)
)

REWIRING = (DENSE, Column("snip"), Column("sparse-momentum"), Column("dsr"), DPF)
SIMPLE = (DENSE, ONESHOT, INCREMENTAL, INCREMENTAL_TUNED, DPF, DPF_TUNED)
STRUCTURED = (Column("dense", unit="filter"), SFP, DPF_FILTERS)
EVERY_METHOD = (
    *(DENSE, Column("static"), Column("snip"), Column("set"), Column("dsr"), Column("sparse-momentum")),
    *(Column("rigl"), Column("granet"), ACDC),
    *(*SIMPLE[1:], SETTLED, SOFT),
)
STEADY = (INCREMENTAL, DPF, SETTLED, STABLE, DPF_TUNED)
STEADY_FILTERS = (*STRUCTURED, STABLE_FILTERS, SFP_CONSTANT)
SPARSITIES = (0.8, 0.9, 0.95)
RATIOS = (0.2, 0.4)


def compared(
    name: str,
    columns: tuple[Column, ...],
    of: str,
    instead: tuple[float, ...],
    networks: Sequence[str] | None = None,
    *,
    drawn: bool = False,
) -> Experiment:
    """Return a table of methods at the places of the published table `of`; at a small scale, at sparsities `instead`.

    With `drawn`, it has figures of accuracy against sparsity, parameters and MACs.
    """

    def comparison(scale: Scale) -> MethodComparison:
        return MethodComparison(columns, tuple(scale.places(places_of(of, networks=networks), instead)))

    def content(scale: Scale, store: ResultStore) -> Content:
        found = comparison(scale)
        figures = tradeoffs(name, tasks_of(store, found.cells(scale))) if drawn else ()
        return found.text(scale, store), found.rows(scale, store), figures

    return Experiment(name, TITLES[name], content, lambda scale, store: comparison(scale).cells(scale))


def _macs_cells(scale: Scale, store: ResultStore) -> list[Cell]:
    return [cell for cells in _macs_grid(scale).values() for cell in cells.values()]


def _macs_grid(scale: Scale) -> dict[float, dict[str, Cell]]:
    places = scale.places(places_of("macs"), SPARSITIES)
    return {
        sparsity: {
            "global": scale.cell(network, "dpf", sparsity),
            "layer": scale.cell(network, "dpf", sparsity, scope="layer"),
        }
        for network, sparsity in places
    }


def _macs_content(scale: Scale, store: ResultStore) -> Content:
    grid = _macs_grid(scale)
    printed = {(row.sparsity, row.scope): row.macs for row in published.table("macs")}
    rows: list[dict[str, Any]] = []
    lines = []
    for sparsity, cells in grid.items():
        for scope, cell in cells.items():
            found, paper = store.summary(cell, "macs_kept"), printed.get((sparsity, scope))  # type: ignore[arg-type]
            rows.append({"sparsity": sparsity, "scope": scope, **as_row(found), "paper": paper, "scale": scale.name})
            lines.append([percent(sparsity), scope, _millions(None if found is None else found.mean), _millions(paper)])
    text = table(["pruned", "threshold", "ours", "paper, ResNet-20"], lines)
    note = (
        "Multiply-accumulates per image in the paper's convention: convolutions, batch norm, ReLU and the last layer."
    )
    return f"{text}\n\n{note} {explained(scale)}", rows, ()


def _millions(count: float | None) -> str:
    return NOT_RUN if count is None else f"{count / 1e6:.2f} M"


def _imagenet(scale: Scale) -> MethodComparison:
    columns = (
        DENSE,
        Column("incremental"),
        # The paper's 7.06 M and 4.59 M parameters fit a dense last layer; a sparse one leaves 5.15 M and 2.60 M.
        Column("sparse-momentum", fields=(("include_last", False),), printed=True),
        Column("dpf"),
        Column("dpf", fields=(("include_last", True),), name="DPF, last layer too"),
    )
    return MethodComparison(columns, tuple(scale.places([("resnet50", 0.8), ("resnet50", 0.9)], (0.8, 0.9))))


def _imagenet_content(scale: Scale, store: ResultStore) -> Content:
    comparison = _imagenet(scale)
    lines, rows = [], []
    for place in comparison.places:
        for column in comparison.columns:
            cell = column.cell(scale, place)
            numbers = {name: store.summary(cell, name) for name in ("top1", "top5", "reached_ratio", "nonzeros")}
            paper = in_print("resnet50", column, place[1])
            left = numbers["nonzeros"]
            lines.append(
                [
                    percent(place[1]),
                    column.title,
                    accuracy(store, cell),
                    "–" if numbers["top5"] is None else number(numbers["top5"]),
                    "–" if paper is None or paper.mean is None else f"{paper.mean:.2f}",
                    NOT_RUN if left is None else quantity(left.mean),
                ]
            )
            rows.append(
                {
                    "sparsity": place[1],
                    "method": column.title,
                    "scale": scale.name,
                    **as_row(numbers["top1"], store.diverged(cell)),
                }
                | {name: found and found.mean for name, found in numbers.items() if name != "top1"}
                | {"paper_top1": paper and paper.mean}
            )
    head = ["pruned", "method", "top-1", "top-5", "paper, ResNet-50 on ImageNet", "parameters left"]
    note = explained(scale, "ResNet-50 on ImageNet, 90 epochs; its numbers for DSR and one for Incremental are others'")
    return f"{table(head, lines)}\n\n{note}", rows, ()


TITLES = {
    "table1": "Table 1: unstructured, against methods that move their masks",
    "table2": "Table 2: unstructured, against simple methods, with and without fine-tuning",
    "table3": "Table 3: ResNet-50 on ImageNet, unstructured",
    "table4": "Table 4: unstructured, at all sparsities",
    "table5": "Table 5: multiplications left by one threshold and by one for each layer",
    "table6": "Table 6: whole filters, against SFP",
    "accuracy": "Accuracy against sparsity, parameters and MACs, unstructured",
    "structured": "Accuracy against sparsity, parameters and MACs, whole filters",
    "methods": "Beyond the paper: every method on one network",
    "steady": "Beyond the paper: letting the mask settle, bounding the gradient of dead filters",
    "steady-filters": "Beyond the paper: whole filters, with the gradient of dead ones bounded; SFP without a ramp",
}

EXPERIMENTS = (
    compared("table1", REWIRING, "cifar10-unstructured", SPARSITIES[1:]),
    compared("table2", SIMPLE, "cifar10-finetuned", SPARSITIES),
    Experiment("table3", TITLES["table3"], _imagenet_content, lambda scale, store: _imagenet(scale).cells(scale)),
    compared("table4", REWIRING, "cifar10-unstructured-complete", SPARSITIES),
    Experiment("table5", TITLES["table5"], _macs_content, _macs_cells),
    compared("table6", STRUCTURED, "cifar10-structured", RATIOS),
    compared("methods", EVERY_METHOD, "cifar10-finetuned", SPARSITIES, ["resnet20"]),
    compared("steady", STEADY, "cifar10-finetuned", (0.9, 0.95, 0.98), ["resnet20"]),
    compared("steady-filters", STEADY_FILTERS, "cifar10-structured", RATIOS, ["resnet20"]),
)
