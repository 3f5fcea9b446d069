"""The numbers in the paper's tables, for comparison with measured results.

`table("cifar10-unstructured")` returns the rows of Table 1. Networks and methods have the names of `regrow`
(`build("wrn28-2")`, `SparseMomentum`), sparsities are fractions, accuracies are in percent as printed. The files in
assets/paper hold what the tables say, including inconsistencies: DPF's loss on ImageNet at 90 % is printed as 1.44
although 75.95 - 74.55 is 1.40 (differences are not stored). The dense ResNet-32 has 93.83 in Tables 1, 2 and 4 but
93.52 in Table 6.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from regrow.report.tables import Published, method_title
from regrow.runs.outcomes import is_dense
from regrow.runs.recipe import Recipe, load_recipe, recipe_names
from regrow.text import did_you_mean

Outcome = Literal["converged", "diverged", "unreported"]


@dataclass(frozen=True)
class PaperRow:
    """One cell of a table of the paper and its setting; None for what the table does not say.

    `sparsity` is the target and `reached` the final one, both of the whole network's weights or filters; `mean` and
    `std` are the top-1 test accuracy in percent (of three runs on CIFAR-10), and the `dense_` fields are those of the
    unpruned network. `source` names who ran it, if not the paper.
    """

    network: str
    method: str
    sparsity: float
    fine_tuned: bool = False
    unit: Literal["weight", "filter"] = "weight"
    scope: Literal["global", "layer"] | None = None
    outcome: Outcome = "converged"
    mean: float | None = None
    std: float | None = None
    top5: float | None = None
    dense_mean: float | None = None
    dense_std: float | None = None
    dense_top5: float | None = None
    reached: float | None = None
    parameters: int | None = None
    macs: int | None = None
    source: str = "paper"


# The networks of the paper have none of these fields set.
_SHAPE = ("width", "stem_stride", "growth", "limit")

TABLES = (
    "cifar10-unstructured",
    "cifar10-finetuned",
    "imagenet",
    "cifar10-unstructured-complete",
    "macs",
    "cifar10-structured",
)
"""The paper's tables 1 to 6, by the names that `table` takes."""


def table(name: str) -> list[PaperRow]:
    """Return the rows of a table, in the paper's order.

    >>> row = table("cifar10-unstructured")[-1]
    >>> row.network, row.method, row.sparsity, row.mean, row.std
    ('wrn28-8', 'DPF', 0.999, 91.76, 0.18)
    """
    if name not in TABLES:
        hint = did_you_mean(name, TABLES, cutoff=0.3)
        raise ValueError(f"the paper has no table {name!r}.{hint} Its tables are {', '.join(TABLES)}.")
    return list(_rows(name))


def in_the_paper(recipe: Recipe, finetuned: bool) -> Published | None:
    """Return the accuracy that the paper reports for a recipe's setting, with the length of its training."""
    name = f"{recipe.data.removesuffix('10')}-{recipe.model}"
    if recipe.holdout or name not in recipe_names() or any(getattr(recipe, field) is not None for field in _SHAPE):
        return None
    scale = f"{load_recipe(name).epochs}{' + 60' if finetuned else ''} epochs"
    if is_dense(recipe):
        return reported(recipe.model, "dense", unit=None, scale=scale)
    unit: Literal["weight", "filter"] = "filter" if recipe.unit == "filter" else "weight"
    if recipe.unit not in (None, unit):
        return None  # N:M
    return reported(recipe.model, recipe.method, recipe.sparsity, finetuned, unit=unit, scale=scale)


def reported(
    network: str,
    method: str,
    sparsity: float | str | None = None,
    finetuned: bool = False,
    *,
    unit: Literal["weight", "filter"] | None,
    own: bool = False,
    scale: str = "",
) -> Published | None:
    """Return the accuracy of a method as recipes name it, in any table; its mean is None if it did not converge.

    With `own`, only results of the paper itself. The tables about weights and those about filters each have a dense
    network; `unit` chooses between them, None takes the first.
    """
    rows = [row for name in TABLES for row in table(name) if row.network == network and unit in (None, row.unit)]
    if method == "dense":
        means = [row for row in rows if row.dense_mean is not None and row.source == "paper"]
        return Published(means[0].dense_mean, means[0].dense_std, scale) if means else None
    wanted = (method_title(method), sparsity, finetuned)
    for row in rows:
        known = (row.mean is not None or row.outcome == "diverged") and (row.source == "paper" or not own)
        if known and (row.method, row.sparsity, row.fine_tuned) == wanted:
            return Published(row.mean, row.std, scale)
    return None


@cache
def _rows(name: str) -> tuple[PaperRow, ...]:
    text = files("regrow.report").joinpath("assets", "paper", f"{name}.csv").read_text(encoding="utf-8")
    return tuple(_row(cells) for cells in csv.DictReader(text.splitlines()))


def _row(cells: Mapping[str, str]) -> PaperRow:
    """Return a row with each cell converted to the type of its field; empty cells keep the default."""
    known = {field: value for field, value in cells.items() if value}
    numbers = {field: float(known[field]) for field in _FLOATS & known.keys()}
    counts = {field: int(known[field]) for field in _COUNTS & known.keys()}
    flags = {"fine_tuned": known.pop("fine_tuned", "no") == "yes"}
    return PaperRow(**{**known, **numbers, **counts, **flags})  # type: ignore[arg-type]


_FLOATS = frozenset({"sparsity", "mean", "std", "top5", "dense_mean", "dense_std", "dense_top5", "reached"})
_COUNTS = frozenset({"parameters", "macs"})
