"""Sizes of the experiments and their tuned learning rates."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from regrow.runs.recipe import Device, Recipe, UsageError, load_recipe
from regrow.text import did_you_mean
from reproduce.results import Cell

ScaleName = Literal["paper", "cpu", "small", "jpeg", "digits", "smoke"]

Place = tuple[str, float]
"""A network, by the name it has in `regrow`, and a sparsity."""

# Fields with which a method's authors trained on CIFAR, where others are the default.
_ON_CIFAR: dict[str, dict[str, Any]] = {
    # The defaults are for ImageNet.
    "acdc": {"options": ("switches=[0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85]",)},
}
# At most 32.8 % on held-out images with a scaled period, 58.6 % without (results/tuning/cifar10-resnet8.jsonl).
UNSCALED = {"sparse-momentum": "a scaled one moves half of the weights every few steps and empties whole layers"}
"""Methods whose period is not scaled to short trainings, and why."""


@dataclass(frozen=True)
class Scale:
    """Size of the experiments: networks, length of training, number of seeds."""

    name: str
    about: str
    """How the experiments differ from the paper's."""
    stand_in: Recipe | None
    """Recipe of the one network used instead of the paper's; None: the paper's networks and recipes."""
    seeds: tuple[int, ...]
    finetune_epochs: int
    grid: tuple[float, ...]
    """Learning rates with which tuning starts."""
    finetuning: tuple[tuple[Literal["sgd", "adam"], float], ...]
    """Candidates (optimizer, learning rate) for fine-tuning."""
    holdout: int
    """Number of held-out training images used for tuning."""
    tuned_at: float
    """Sparsity at which methods are tuned."""
    periods: tuple[int, ...]
    batches: tuple[int, ...]
    minutes: float | None = None
    """Time of one training on one core, if known."""
    rates: TunedRates = field(default_factory=dict)
    device: Device | None = None
    """Device for training. None: as in the recipes."""

    def places(self, published: Iterable[Place], instead: Iterable[float]) -> list[Place]:
        """Return the paper's networks and sparsities; at a small scale, the stand-in at the sparsities `instead`."""
        if self.stand_in is None:
            return list(dict.fromkeys(published))
        return [(self.stand_in.model, sparsity) for sparsity in instead]

    def networks(self, published: Iterable[str]) -> list[str]:
        """Return the paper's networks, or the stand-in."""
        return list(dict.fromkeys(published)) if self.stand_in is None else [self.stand_in.model]

    def beside(self, network: str) -> str:
        """Return the paper's network to compare `network` with."""
        return network if self.stand_in is None else "resnet20"

    def recipe(self, network: str, method: str, sparsity: float | None = None, **fields: Any) -> Recipe:
        """Return the recipe of one training, with the tuned learning rate of the method if known."""
        # The paper's trainings have the methods' own periods, whatever the batch.
        base = self.stand_in or published_recipe(network).changed(every="paper")
        rate = rate_of(self.rates, network, method)
        chosen: dict[str, Any] = {"method": method, **({} if rate is None else {"lr": rate.lr})}
        if base.data == "cifar10":
            chosen |= _ON_CIFAR.get(method, {})
        if method in UNSCALED:
            chosen["every"] = "paper"
        if sparsity is not None and method != "dense":
            chosen["sparsity"] = sparsity
        if self.device is not None:
            chosen["device"] = self.device
        return base.changed(**{**chosen, **fields})

    def cell(
        self, network: str, method: str, sparsity: float | None = None, *, finetuned: bool = False, **fields: Any
    ) -> Cell:
        """Return the runs behind one number: a training for each seed."""
        if finetuned:
            rate = rate_of(self.rates, network, method)
            tuned: dict[str, Any] = {"finetune_epochs": self.finetune_epochs}
            if rate is not None and rate.finetune_lr is not None:
                tuned |= {"finetune_optimizer": rate.finetune_optimizer or "sgd", "finetune_lr": rate.finetune_lr}
            fields = {**tuned, **fields}
        recipe = self.recipe(network, method, sparsity, **fields)
        return Cell(tuple(recipe.changed(seed=seed) for seed in self.seeds), finetuned)

    @property
    def usual_period(self) -> int:
        """Steps between DPF's masks where a recipe does not say: 16, or what `every="auto"` makes of it here."""
        return 1 if self.stand_in is not None and self.stand_in.every == "auto" else 16

    def tuned(self, network: str, method: str) -> bool:
        """Return whether the learning rate of `method` is known."""
        return rate_of(self.rates, network, method) is not None

    def changed(self, **fields: Any) -> Scale:
        """Return the scale with some fields changed."""
        return dataclasses.replace(self, **fields)


@cache
def published_recipe(network: str) -> Recipe:
    """Return the paper's recipe for a network (Appendix A.2)."""
    return load_recipe("imagenet-resnet50" if network == "resnet50" else f"cifar-{network}")


def find_scale(name: str) -> Scale:
    """Return a scale by name.

    >>> find_scale("cpu").stand_in.model
    'resnet20'
    """
    scales = {"paper": _paper, "cpu": _cpu, "small": _small, "jpeg": _jpeg, "digits": _digits, "smoke": _smoke}
    if name not in scales:
        hint = did_you_mean(name, scales, cutoff=0.3)
        raise UsageError(f"unknown scale {name!r}.{hint} The scales are {', '.join(scales)}.")
    return scales[name]()


def _paper() -> Scale:
    return Scale(
        name="paper",
        about="the paper's protocol",
        stand_in=None,
        seeds=(0, 1, 2),
        finetune_epochs=60,
        grid=(0.05, 0.10, 0.15, 0.20),
        finetuning=(("sgd", 0.01), ("sgd", 0.02), ("sgd", 0.05), ("adam", 0.0003), ("adam", 0.001)),
        holdout=5000,
        tuned_at=0.9,
        periods=(1, 2, 4, 8, 16, 32, 64),
        batches=(64, 128, 256, 512, 1024),
        rates=known_rates("paper"),
    )


def _small() -> Scale:
    return Scale(
        name="small",
        about="ResNet-8 with a stride-2 stem, CIFAR-10, 8 epochs (fine-tuning: 2 more)",
        stand_in=load_recipe("cifar-small"),
        seeds=(0, 1, 2),
        finetune_epochs=2,
        grid=(0.1, 0.2, 0.4),
        finetuning=(("sgd", 0.02), ("adam", 0.001)),
        holdout=5000,
        tuned_at=0.95,
        periods=(1, 16, 64, 256),
        batches=(64, 128, 256),
        minutes=3.0,
        rates=known_rates("small"),
    )


def _cpu() -> Scale:
    short = {"epochs": 12, "ramp_by": "step", "warmup": 0.02, "finetune_lr": 0.02}
    return _small().changed(
        name="cpu",
        about="ResNet-20, CIFAR-10, the paper's schedule in 12 epochs (fine-tuning: 2 more)",
        stand_in=load_recipe("cifar-resnet20").changed(**short, channels_last=True, threads=1),
        minutes=30.0,
        # Tuned on the small network: tuning this one would take longer than all its tables.
        rates={("resnet20", method): rate for (_, method), rate in known_rates("small").items()},
    )


def _jpeg() -> Scale:
    return _small().changed(
        name="jpeg",
        about="ResNet-8, a JPEG copy of CIFAR-10, 8 epochs, update periods not scaled to so short a training",
        stand_in=load_recipe("cifar-small").changed(every="paper"),
        grid=(0.05, 0.1, 0.2),
        tuned_at=0.9,
        minutes=2.0,
        rates=known_rates("jpeg"),
    )


def _digits() -> Scale:
    return Scale(
        name="digits",
        about="three convolutions on the digits of the package (500 test images), 15 epochs (fine-tuning: 3 more)",
        stand_in=load_recipe("digits").changed(epochs=15, ramp_by="step", threads=1),
        seeds=(0, 1, 2, 3, 4),
        finetune_epochs=3,
        grid=(0.05, 0.1, 0.2),
        finetuning=(("sgd", 0.02), ("adam", 0.001)),
        holdout=300,
        tuned_at=0.9,
        periods=(1, 4, 16, 64),
        batches=(32, 64, 128),
        minutes=0.1,
        rates=known_rates("digits"),
    )


def _smoke() -> Scale:
    digits = load_recipe("digits").changed(width=4, epochs=3, batch=16, limit=256, ramp_by="step", threads=1)
    return Scale(
        name="smoke",
        about="a small network on 256 digits, 3 epochs: a quick test whose results mean nothing",
        stand_in=digits,
        seeds=(0,),
        finetune_epochs=1,
        grid=(0.1, 0.2),
        finetuning=(("sgd", 0.02), ("adam", 0.001)),
        holdout=64,
        tuned_at=0.9,
        periods=(1, 16),
        batches=(8, 16),  # with 32, a mask every 16 steps would not reach its sparsity
        minutes=0.01,
    )


# Without their own learning rate, these use that of the method they start from or are a variant of.
_LIKE = {"fixed": "dpf", "lottery": "dense", "oneshot": "dense", "feedback": "dpf"}


@dataclass(frozen=True)
class TunedRate:
    """Tuned learning rates of a method on a network, and their source."""

    lr: float
    finetune_optimizer: Literal["sgd", "adam"] | None = None
    finetune_lr: float | None = None
    source: str = ""


TunedRates = Mapping[tuple[str, str], TunedRate]
"""By network and method."""


def known_rates(scale: str) -> dict[tuple[str, str], TunedRate]:
    """Return the learning rates in learning-rates.csv.

    >>> known_rates("paper")["wrn28-2", "dpf"].lr
    0.1
    """
    text = files(__package__).joinpath("learning-rates.csv").read_text(encoding="utf-8")
    return {
        (row["network"], row["method"]): _rate(row)
        for row in csv.DictReader(text.splitlines())
        if row["scale"] == scale
    }


def rate_of(rates: TunedRates, network: str, method: str) -> TunedRate | None:
    """Return the learning rate of `method` on `network`, or None if it is not tuned."""
    return rates.get((network, method)) or rates.get((network, _LIKE.get(method, method)))


def _rate(row: Mapping[str, str]) -> TunedRate:
    optimizer = row["finetune_optimizer"]
    return TunedRate(
        lr=float(row["lr"]),
        finetune_optimizer=None if not optimizer else ("adam" if optimizer == "adam" else "sgd"),
        finetune_lr=float(row["finetune_lr"]) if row["finetune_lr"] else None,
        source=row["source"],
    )
