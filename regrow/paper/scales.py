"""Sizes at which the paper can be run: its own, one for two CPU cores, one that takes seconds a run, one for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from regrow.host.hints import did_you_mean
from regrow.paper.cells import Cell
from regrow.paper.rates import Rates, known_rates, rate_of
from regrow.train.catalog import load_recipe
from regrow.train.config import Device, Recipe, RecipeError

Place = tuple[str, float]
"""A network, by the name it has in `regrow`, and a sparsity."""

# Options with which a method's authors trained on CIFAR, where its defaults are those for ImageNet.
_ON_CIFAR = {"acdc": ("switches=[0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85]",)}


@dataclass(frozen=True)
class Scale:
    """How large the experiments are: which networks stand for the paper's, how long they train, how many seeds."""

    name: str
    about: str
    """What makes our numbers another experiment than the paper's."""
    stand_in: Recipe | None
    """The one network that stands for all of the paper's; None: the paper's own networks and recipes."""
    seeds: tuple[int, ...]
    finetune_epochs: int
    grid: tuple[float, ...]
    """Learning rates that tuning starts with."""
    finetuning: tuple[tuple[Literal["sgd", "adam"], float], ...]
    """Optimizers and learning rates among which fine-tuning is tuned."""
    holdout: int
    """Training images on which tuning decides."""
    tuned_at: float
    """Sparsity at which methods are tuned."""
    periods: tuple[int, ...]
    batches: tuple[int, ...]
    minutes: float | None = None
    """What one training takes on one core, where that is known."""
    rates: Rates = field(default_factory=dict)
    device: Device | None = None
    """Where to train. None: where the recipes say."""

    def places(self, published: Iterable[Place], instead: Iterable[float]) -> list[Place]:
        """Return where the paper measured; at a small scale the stand-in at the sparsities `instead`."""
        if self.stand_in is None:
            return list(dict.fromkeys(published))
        return [(self.stand_in.model, sparsity) for sparsity in instead]

    def networks(self, published: Iterable[str]) -> list[str]:
        """Return the paper's networks, or the one that stands for them."""
        return list(dict.fromkeys(published)) if self.stand_in is None else [self.stand_in.model]

    def beside(self, network: str) -> str:
        """Return the paper's network whose numbers stand beside those of `network`."""
        return network if self.stand_in is None else "resnet20"

    def recipe(self, network: str, method: str, sparsity: float | None = None, **fields: Any) -> Recipe:
        """Return the recipe for one training, with the learning rate that is known for the method."""
        base = self.stand_in or published_recipe(network)
        rate = rate_of(self.rates, network, method)
        chosen: dict[str, Any] = {"method": method, **({} if rate is None else {"lr": rate.lr})}
        if base.data == "cifar10" and method in _ON_CIFAR:
            chosen["options"] = _ON_CIFAR[method]
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
            tuned = (
                {}
                if rate is None or rate.finetune_lr is None
                else _finetuning(rate.finetune_optimizer, rate.finetune_lr)
            )
            fields = {"finetune_epochs": self.finetune_epochs, **tuned, **fields}
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
    """Return the scale paper, cpu, small, digits or smoke.

    >>> find_scale("cpu").stand_in.model
    'resnet20'
    """
    scales = {"paper": _paper, "cpu": _cpu, "small": _small, "jpeg": _jpeg, "digits": _digits, "smoke": _smoke}
    if name not in scales:
        hint = did_you_mean(name, scales, cutoff=0.3)
        raise RecipeError(f"there is no scale {name!r}.{hint} The scales are {', '.join(scales)}.")
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


def _cpu() -> Scale:
    short = {"epochs": 12, "ramp_by": "step", "warmup": 0.02, "finetune_lr": 0.02}
    return Scale(
        name="cpu",
        about="ResNet-20, CIFAR-10, the paper's schedule in 12 epochs (fine-tuning: 2 more)",
        stand_in=load_recipe("cifar-resnet20").changed(**short, every="auto", channels_last=True, threads=1),
        seeds=(0, 1, 2),
        finetune_epochs=2,
        grid=(0.1, 0.2, 0.4),
        finetuning=(("sgd", 0.02), ("adam", 0.001)),
        holdout=5000,
        tuned_at=0.95,
        periods=(1, 16, 64, 256),
        batches=(64, 128, 256),
        minutes=30.0,
        # Chosen once on the small network: tuning this one would take longer than all its tables.
        rates={("resnet20", method): rate for (_, method), rate in known_rates("small").items()},
    )


def _small() -> Scale:
    return Scale(
        name="small",
        about="ResNet-8 with a stride-2 stem, CIFAR-10, 8 epochs (fine-tuning: 2 more)",
        stand_in=load_recipe("cifar-small").changed(every="auto"),
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


def _jpeg() -> Scale:
    return Scale(
        name="jpeg",
        about="ResNet-8, a JPEG copy of CIFAR-10, 8 epochs, update periods not scaled to so short a training",
        stand_in=load_recipe("cifar-small"),
        seeds=(0, 1, 2),
        finetune_epochs=2,
        grid=(0.05, 0.1, 0.2),
        finetuning=(("sgd", 0.02), ("adam", 0.001)),
        holdout=5000,
        tuned_at=0.9,
        periods=(1, 16, 64, 256),
        batches=(64, 128, 256),
        minutes=2.0,
        rates=known_rates("jpeg"),
    )


def _digits() -> Scale:
    return Scale(
        name="digits",
        about="three convolutions on the digits of the package (500 test images), 15 epochs (fine-tuning: 3 more)",
        stand_in=load_recipe("digits").changed(epochs=15, ramp_by="step", every="auto", threads=1),
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
    digits = load_recipe("digits").changed(
        width=4, epochs=3, batch=16, limit=256, ramp_by="step", every="auto", threads=1
    )
    return Scale(
        name="smoke",
        about="a small network on 256 digits, 3 epochs: it shows that everything runs, and nothing else",
        stand_in=digits,
        seeds=(0,),
        finetune_epochs=1,
        grid=(0.1, 0.2),
        finetuning=(("sgd", 0.02), ("adam", 0.001)),
        holdout=64,
        tuned_at=0.9,
        periods=(1, 16),
        batches=(16, 32),
        minutes=0.01,
    )


def _finetuning(optimizer: str | None, lr: float) -> dict[str, Any]:
    return {"finetune_optimizer": optimizer or "sgd", "finetune_lr": lr}
