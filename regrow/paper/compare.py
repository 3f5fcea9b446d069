"""Methods side by side: our numbers over the paper's, network by network, with the scale of each named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from regrow.paper import published
from regrow.paper.cells import Cell, Library
from regrow.paper.scales import Place, Scale, published_recipe
from regrow.paper.views import accuracy, as_row, table
from regrow.report.tasks import method_title, percent


@dataclass(frozen=True)
class Column:
    """A method as a table has it."""

    method: str
    finetuned: bool = False
    unit: Literal["weight", "filter"] = "weight"
    fields: tuple[tuple[str, Any], ...] = ()
    """More fields of its recipes."""
    printed: bool = False
    """Whether the paper's number of the method has these fields as well."""
    name: str = ""
    """Its heading, where the method's own name does not do."""

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
class Comparison:
    """Columns at places: what is to be run, and the table that it makes."""

    columns: tuple[Column, ...]
    places: tuple[Place, ...]

    def cells(self, scale: Scale) -> list[Cell]:
        """Return all runs of the table."""
        return [column.cell(scale, place) for place in self.places for column in self.columns]

    def text(self, scale: Scale, library: Library) -> str:
        """Return the table: our line, and the paper's below it."""
        lines = [line for place in self.places for line in self._lines(scale, library, place)]
        head = ["network", "pruned", "from", *(column.title for column in self.columns)]
        return f"{table(head, lines)}\n\n{explained(scale)}\n\n{learning_rates(scale, self)}"

    def rows(self, scale: Scale, library: Library) -> list[dict[str, Any]]:
        """Return the table's numbers, one for each place and column."""
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
                        **as_row(library.summary(cell), library.diverged(cell)),
                        "parameters_left": library.share(cell, "nonzeros", "parameters"),
                        "paper_network": scale.beside(place[0]),
                        "paper_mean": printed and printed[0],
                        "paper_std": printed and printed[1],
                    }
                )
        return found

    def _lines(self, scale: Scale, library: Library, place: Place) -> list[list[str]]:
        network, sparsity = place
        ours = [accuracy(library, column.cell(scale, place)) for column in self.columns]
        beside = scale.beside(network)
        theirs = [_printed(beside, column, sparsity) for column in self.columns]
        lines = [[network, percent(sparsity), "ours", *ours]]
        return lines if all(cell == "–" for cell in theirs) else [*lines, [beside, percent(sparsity), "paper", *theirs]]


def in_print(network: str, column: Column, sparsity: float) -> tuple[float | None, float | None] | None:
    """Return mean and deviation that the paper printed; (None, None) did not converge, None was not reported."""
    rows = [row for name in published.TABLES for row in published.table(name) if row.network == network]
    rows = [row for row in rows if row.source == "paper" and row.unit == column.unit]
    if column.method == "dense":
        means = [row for row in rows if row.dense_mean is not None]
        return (means[0].dense_mean, means[0].dense_std) if means else None
    if column.fields and not column.printed:
        return None
    wanted = (method_title(column.method), sparsity, column.finetuned)
    for row in rows:
        if (row.method, row.sparsity, row.fine_tuned) == wanted and (row.mean is not None or row.outcome == "diverged"):
            return row.mean, row.std
    return None


def explained(scale: Scale, paper: str = "") -> str:
    """Return what the numbers of a table are, and what the paper's are."""
    ours = "Ours: " + scale.about
    rest = "final epoch at the reached sparsity, mean ± standard deviation, the number of seeds in brackets"
    if scale.stand_in is None:
        return f"{ours}; {rest}. Paper: {paper or 'three seeds'}."
    theirs = paper or f"ResNet-20, {published_recipe('resnet20').epochs} epochs (fine-tuning: 60 more), three seeds"
    return (
        f"{ours}; {rest}. Paper: {theirs}. These are different experiments: the order of the methods can be compared, "
        "the numbers cannot."
    )


def learning_rates(scale: Scale, comparison: Comparison) -> str:
    """Return a line about the learning rates and how they were chosen."""
    found: dict[str, list[str]] = {}
    for column in comparison.columns:
        for network in dict.fromkeys(network for network, _ in comparison.places):
            lr = scale.recipe(network, column.method).lr
            how = "" if scale.tuned(network, column.method) else " (not tuned)"
            found.setdefault(f"{lr:g}{how}", []).append(method_title(column.method))
    said = [f"{rate} for {', '.join(dict.fromkeys(methods))}" for rate, methods in found.items()]
    return f"Learning rates: {'; '.join(said)}."


def places_of(names: Iterable[str], *, networks: Sequence[str] | None = None) -> list[Place]:
    """Return the networks and sparsities of published tables, in their order."""
    rows = [row for name in names for row in published.table(name)]
    return [(row.network, row.sparsity) for row in rows if networks is None or row.network in networks]


def _printed(network: str, column: Column, sparsity: float) -> str:
    found = in_print(network, column, sparsity)
    if found is None:
        return "–"
    mean, std = found
    if mean is None:
        return "did not converge"
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"
