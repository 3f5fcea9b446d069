"""The numbers that the paper printed, as data: what every measured result is put beside.

`table("cifar10-unstructured")` gives the rows of Table 1. Networks and methods bear the names they have in `regrow`
(`build("wrn28-2")`, `SparseMomentum`), sparsities are shares, accuracies are per cent as printed. The data files hold
what the tables say, also where they disagree with themselves: DPF's loss on ImageNet at 90 % is printed as 1.44 though
75.95 - 74.55 is 1.40 (differences are not stored), and the dense ResNet-32 has 93.83 in Tables 1, 2 and 4 but 93.52 in
Table 6.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from regrow.text import did_you_mean

Outcome = Literal["converged", "diverged", "unreported"]


@dataclass(frozen=True)
class Row:
    """One cell of a table of the paper, with all that says what it is; None where the table is silent.

    `sparsity` is the target and `reached` what was reached, both of the whole network's weights or filters; `mean` and
    `std` are the top-1 test accuracy in per cent (of three runs on CIFAR-10), the `dense_` fields those of the
    unpruned network beside it. `source` is who ran it, where that is not the paper itself.
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
class Table:
    """A table of the paper: the `number` it has there, its label in the LaTeX, and what it is about."""

    number: int
    label: str
    title: str


_CIFAR10 = "tab:sota_dnns_cifar10_unstructured_pruning_baseline_performance"

TABLES: Mapping[str, Table] = {
    "cifar10-unstructured": Table(1, _CIFAR10, "CIFAR-10, unstructured: SNIP, SM, DSR and DPF"),
    "cifar10-finetuned": Table(2, f"{_CIFAR10}_extra_training", "CIFAR-10, unstructured: simple methods, fine-tuning"),
    "imagenet": Table(
        3,
        "tab:resnet50_imagenet_unstructured_pruning_baseline_performance",
        "ImageNet, ResNet-50, unstructured",
    ),
    "cifar10-unstructured-complete": Table(4, f"{_CIFAR10}_complete", "CIFAR-10, unstructured, all sparsities"),
    "macs": Table(5, "tab:resnet20_cifar10_hyper_param_impact_macs", "MACs of ResNet-20, global and layer-wise"),
    "cifar10-structured": Table(
        6,
        "tab:sota_dnns_cifar10_structured_pruning_performance",
        "CIFAR-10, structured: SFP and DPF",
    ),
}
"""The paper's tables of numbers by the names that `table` takes."""


def table(name: str) -> list[Row]:
    """The rows of a table, in the paper's order.

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
) -> Row | None:
    """The paper's accuracy on CIFAR-10 for a setting that it reports, None where it does not.

    >>> find("resnet20", "Incremental", 0.95).mean
    89.21
    """
    wanted = (network, method, sparsity, fine_tuned, unit)
    for name in ("cifar10-unstructured-complete", "cifar10-finetuned", "cifar10-structured"):
        for row in table(name):
            if (row.network, row.method, row.sparsity, row.fine_tuned, row.unit) == wanted:
                return row
    return None


@cache
def _rows(name: str) -> tuple[Row, ...]:
    text = files(__package__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return tuple(_row(cells) for cells in csv.DictReader(text.splitlines()))


def _row(cells: Mapping[str, str]) -> Row:
    """A row with each cell turned into the type of its field; empty cells keep the default."""
    known = {field: value for field, value in cells.items() if value}
    numbers = {field: float(known[field]) for field in _FLOATS & known.keys()}
    counts = {field: int(known[field]) for field in _COUNTS & known.keys()}
    flags = {"fine_tuned": known.pop("fine_tuned", "no") == "yes"}
    return Row(**{**known, **numbers, **counts, **flags})  # type: ignore[arg-type]


_FLOATS = frozenset({"sparsity", "mean", "std", "top5", "dense_mean", "dense_std", "dense_top5", "reached"})
_COUNTS = frozenset({"parameters", "macs"})
