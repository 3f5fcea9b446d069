"""Tune learning rates on held-out training images, with the same rule for all methods (Appendix A.2).

The grid is tried first and extended as long as the best rate is at its edge. The optimizer and learning rate of
fine-tuning are chosen afterwards among the scale's candidates; the recipe's own are kept unless another is better by
more than a standard error. The test set is not used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regrow.runs.recipe import Recipe
from reproduce.results import Cell, ResultStore
from reproduce.scales import Scale, TunedRate

SEED = 100
"""Seed of tuning runs; no reported number uses it."""
_SPARSITY = {"sfp": 0.4}
_SELF_EVIDENT = ("fixed", "lottery")


@dataclass(frozen=True)
class Choice:
    """The chosen rates for a method on a network, and the held-out top-1 of all candidates (None: failed)."""

    network: str
    method: str
    rate: TunedRate
    sparsity: float
    tried: Mapping[float, float | None]
    finetuning: Mapping[str, float | None] = field(default_factory=dict)
    """By optimizer and rate, such as `adam 0.001`."""

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is at the edge of the grid, so that a better one may lie beyond."""
        return self.rate.lr in (min(self.tried), max(self.tried))

    def as_row(self) -> dict[str, Any]:
        """Return the choice for a JSON file."""
        return {
            "network": self.network,
            "method": self.method,
            **dataclasses.asdict(self.rate),
            "sparsity": self.sparsity,
            "at_edge": self.at_edge,
            "tried": [{"lr": lr, "top1": top1} for lr, top1 in sorted(self.tried.items())],
            "finetuning": [{"candidate": name, "top1": top1} for name, top1 in self.finetuning.items()],
        }


def tuning_recipe(scale: Scale, network: str, method: str, **fields: Any) -> Recipe:
    """Return the recipe of a tuning run, which is evaluated on held-out training images."""
    return scale.recipe(
        network, method, _SPARSITY.get(method, scale.tuned_at), **{"holdout": scale.holdout, "seed": SEED, **fields}
    )


def next_rates(tried: Mapping[float, float | None], grid: Sequence[float]) -> list[float]:
    """Return the rates to try next; none if the best one lies between others (Appendix A.2).

    >>> next_rates({0.05: 88.0, 0.1: 89.5, 0.15: 90.1, 0.2: 90.4}, (0.05, 0.1, 0.15, 0.2))
    [0.25]
    """
    if missing := [rate for rate in grid if rate not in tried]:
        return missing
    best = best_rate(tried)
    if best is None:
        return []
    rates = sorted(tried)
    if best == rates[-1]:
        return [round(2 * rates[-1] - rates[-2], 6)]
    if best == rates[0]:
        below = round(2 * rates[0] - rates[1], 6)
        return [below if below > 0 else rates[0] / 2]
    return []


def best_rate(tried: Mapping[float, float | None]) -> float | None:
    """Return the rate with the highest accuracy (of several, the lowest); None if every training failed."""
    known = {rate: top1 for rate, top1 in tried.items() if top1 is not None}
    return min(known, key=lambda rate: (-known[rate], rate), default=None)


def rates_tried(scale: Scale, store: ResultStore, network: str, method: str) -> dict[float, float | None]:
    """Return the held-out accuracy of every learning rate with a finished run."""
    [cell] = rate_cells(scale, network, method, [1.0])  # of any rate: `varying` finds the others
    found = store.varying(cell.recipes[0], "lr", finetuned=cell.finetuned)
    return {lr: outcome.final["top1"] for lr, outcome in sorted(found.items())}


def rate_cells(scale: Scale, network: str, method: str, rates: Iterable[float]) -> list[Cell]:
    """Return the tuning runs for some learning rates."""
    finetuned = method == "oneshot"  # always used with fine-tuning
    fields = {"finetune_epochs": scale.finetune_epochs} if finetuned else {}
    return [Cell((tuning_recipe(scale, network, method, lr=lr, **fields),), finetuned) for lr in rates]


def finetuning_cells(scale: Scale, network: str, method: str, lr: float) -> dict[str, Cell]:
    """Return the tuning runs for the candidates of fine-tuning, after training with `lr`."""
    recipe = tuning_recipe(scale, network, method, lr=lr, finetune_epochs=scale.finetune_epochs)
    return {
        f"{optimizer} {rate:g}": Cell((recipe.changed(finetune_optimizer=optimizer, finetune_lr=rate),), finetuned=True)
        for optimizer, rate in scale.finetuning
    }


def choose(
    scale: Scale, store: ResultStore, network: str, method: str, *, failed: Iterable[float] = ()
) -> Choice | None:
    """Choose the best rates from the finished tuning runs; None if fewer than two rates were tried.

    `failed` are rates whose training failed.
    """
    tried = {**dict.fromkeys(failed, None), **rates_tried(scale, store, network, method)}
    lr = best_rate(tried)
    if lr is None or len(tried) < 2:
        return None
    recipe, candidates = tuning_recipe(scale, network, method), finetuning_cells(scale, network, method, lr)
    found = {name: store.summary(cell) for name, cell in candidates.items()}
    known = {name: summary.mean for name, summary in found.items() if summary is not None}
    rate = TunedRate(lr, source=f"{scale.holdout:,} held-out training images")
    # With a single candidate, keep the fine-tuning of the recipe.
    if len(known) > 1:
        usual = f"{recipe.finetune_optimizer} {recipe.finetune_lr:g}"
        name = best_candidate(known, usual, scale.holdout)
        optimizer, _, speed = name.partition(" ")
        rate = dataclasses.replace(
            rate, finetune_optimizer="adam" if optimizer == "adam" else "sgd", finetune_lr=float(speed)
        )
    return Choice(network, method, rate, float(recipe.sparsity), tried, dict(known))


def best_candidate(found: Mapping[str, float], own: str, images: int) -> str:
    """Return the candidate with the highest accuracy, or `own` unless that one is clearly better.

    Clearly means by more than the standard error of an accuracy on that many held-out images.

    >>> best_candidate({"sgd 0.02": 68.1, "adam 0.001": 68.3}, "sgd 0.02", 5000)
    'sgd 0.02'
    """
    best = max(found, key=lambda each: found[each])
    if own not in found:
        return best
    error = (found[own] * (100 - found[own]) / images) ** 0.5
    return best if found[best] - found[own] > error else own


def to_tune(scale: Scale, cells: Iterable[Cell]) -> list[tuple[str, str, bool]]:
    """Return the networks and methods without a tuned rate, and whether they are fine-tuned."""
    wanted: dict[tuple[str, str], bool] = {}
    for cell in cells:
        for recipe in cell.recipes[:1]:
            if recipe.method not in _SELF_EVIDENT and not scale.tuned(recipe.model, recipe.method):
                key = (recipe.model, recipe.method)
                wanted[key] = wanted.get(key, False) or cell.finetuned
    return [(*key, finetuned) for key, finetuned in wanted.items()]
