"""The numbers in the paper's tables, for comparison with measured results.

`table("cifar10-unstructured")` returns the rows of Table 1. Networks and methods have the names of `regrow`
(`build("wrn28-2")`, `SparseMomentum`), sparsities are fractions, accuracies are in percent as printed. The files in
assets/paper hold what the tables say, including inconsistencies: DPF's loss on ImageNet at 90 % is printed as 1.44
although 75.95 - 74.55 is 1.40 (differences are not stored), and the dense ResNet-32 has 93.83 in Tables 1, 2 and 4 but
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


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its number, its LaTeX label and its topic."""

    number: int
    label: str
    title: str


# The networks of the paper have none of these fields set.
_SHAPE = ("width", "stem_stride", "growth", "limit")
_CIFAR10 = "tab:sota_dnns_cifar10_unstructured_pruning_baseline_performance"

TABLES: Mapping[str, PaperTable] = {
    "cifar10-unstructured": PaperTable(1, _CIFAR10, "CIFAR-10, unstructured: SNIP, SM, DSR and DPF"),
    "cifar10-finetuned": PaperTable(
        2, f"{_CIFAR10}_extra_training", "CIFAR-10, unstructured: simple methods, fine-tuning"
    ),
    "imagenet": PaperTable(
        3,
        "tab:resnet50_imagenet_unstructured_pruning_baseline_performance",
        "ImageNet, ResNet-50, unstructured",
    ),
    "cifar10-unstructured-complete": PaperTable(4, f"{_CIFAR10}_complete", "CIFAR-10, unstructured, all sparsities"),
    "macs": PaperTable(5, "tab:resnet20_cifar10_hyper_param_impact_macs", "MACs of ResNet-20, global and layer-wise"),
    "cifar10-structured": PaperTable(
        6,
        "tab:sota_dnns_cifar10_structured_pruning_performance",
        "CIFAR-10, structured: SFP and DPF",
    ),
}
"""The paper's tables by the names that `table` takes."""


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


def find(
    network: str,
    method: str,
    sparsity: float,
    *,
    fine_tuned: bool = False,
    unit: Literal["weight", "filter"] = "weight",
) -> PaperRow | None:
    """Return the paper's accuracy on CIFAR-10 for a setting, or None if the paper does not report it.

    >>> find("resnet20", "Incremental", 0.95).mean
    89.21
    """
    wanted = (network, method, sparsity, fine_tuned, unit)
    for name in ("cifar10-unstructured-complete", "cifar10-finetuned", "cifar10-structured"):
        for row in table(name):
            if (row.network, row.method, row.sparsity, row.fine_tuned, row.unit) == wanted:
                return row
    return None


def in_the_paper(recipe: Recipe, finetuned: bool) -> Published | None:
    """Return the accuracy that the paper reports for a recipe's setting, with the length of its training."""
    name = f"{recipe.data.removesuffix('10')}-{recipe.model}"
    if recipe.holdout or name not in recipe_names() or any(getattr(recipe, field) is not None for field in _SHAPE):
        return None
    scale = f"{load_recipe(name).epochs}{' + 60' if finetuned else ''} epochs"
    rows = [row for each in TABLES for row in table(each) if row.network == recipe.model]
    if is_dense(recipe):
        means = [row for row in rows if row.dense_mean is not None and row.source == "paper"]
        return Published(means[0].dense_mean, means[0].dense_std, scale) if means else None
    wanted = (method_title(recipe.method), recipe.sparsity, finetuned, recipe.unit or "weight")
    for row in rows:
        reported = row.mean is not None or row.outcome == "diverged"
        if reported and (row.method, row.sparsity, row.fine_tuned, row.unit) == wanted:
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
