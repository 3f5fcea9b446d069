"""Learning rates that are known, by scale, network and method; what is not known is tuned (`regrow.paper.tuning`).

`learning-rates.csv` holds the paper's own choices for DPF (Appendix A.2) and, for the scales cpu and digits, what was
chosen on held-out training images; `results/tuning/choices.json` has every candidate.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

# These train with the rate of the method whose masks or weights they start from.
_LIKE = {"fixed": "dpf", "lottery": "dense"}


@dataclass(frozen=True)
class Rate:
    """How fast a method learns on a network, and where the number comes from."""

    lr: float
    finetune_optimizer: Literal["sgd", "adam"] | None = None
    finetune_lr: float | None = None
    source: str = ""


Rates = Mapping[tuple[str, str], Rate]
"""By network and method."""


def known_rates(scale: str) -> dict[tuple[str, str], Rate]:
    """Return the rates that the package comes with.

    >>> known_rates("paper")["wrn28-2", "dpf"].lr
    0.1
    """
    text = files(__package__).joinpath("learning-rates.csv").read_text(encoding="utf-8")
    return {
        (row["network"], row["method"]): _rate(row)
        for row in csv.DictReader(text.splitlines())
        if row["scale"] == scale
    }


def rate_of(rates: Rates, network: str, method: str) -> Rate | None:
    """Return the rate of `method` on `network`, or None where nobody has tuned it."""
    return rates.get((network, _LIKE.get(method, method)))


def _rate(row: Mapping[str, str]) -> Rate:
    optimizer = row["finetune_optimizer"]
    return Rate(
        lr=float(row["lr"]),
        finetune_optimizer=None if not optimizer else ("adam" if optimizer == "adam" else "sgd"),
        finetune_lr=float(row["finetune_lr"]) if row["finetune_lr"] else None,
        source=row["source"],
    )
