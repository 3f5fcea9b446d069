"""Build the parts of a training from a recipe: data, network, optimizer, learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from regrow import data, models
from regrow.data import Batches
from regrow.data.catalog import Info
from regrow.train.config import Recipe, RecipeError
from regrow.train.distributed import Ranks

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Sets:
    """Training and test images of a run."""

    train: Batches
    test: Batches
    info: Info

    @property
    def steps(self) -> int:
        """Optimizer steps per epoch."""
        return len(self.train)


def make_sets(recipe: Recipe, ranks: Ranks = Ranks()) -> Sets:  # noqa: B008 - it is immutable
    """Load the images; each rank sees its part. With `holdout`, the test set is not opened."""
    device = make_device(recipe)
    part: dict[str, Any] = {"rank": ranks.rank, "world": ranks.size, "channels_last": recipe.channels_last}
    images = data.load(recipe.data, "train", limit=recipe.limit)
    if recipe.holdout:
        images, test = images.split(recipe.holdout)
    else:
        test = data.load(recipe.data, "test")
    return Sets(
        train=Batches(images.to(device), recipe.batch, seed=recipe.seed, **part),
        test=Batches.evaluation(test.to(device), _evaluation_batch(len(test), ranks.size), **part),
        info=images.info,
    )


def _evaluation_batch(images: int, processes: int) -> int:
    """Return the largest batch size for which the last batch, too, has an image for every process."""
    return next(size for size in range(EVALUATION_BATCH, 0, -1) if not 0 < images % size < processes)


def make_device(recipe: Recipe) -> torch.device:
    """Return the device; raise if it is not available on this machine."""
    missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    if missing.get(recipe.device):
        raise RecipeError(f"device {recipe.device!r} is not available on this machine: use --device cpu")
    return torch.device("cuda", torch.cuda.current_device()) if recipe.device == "cuda" else torch.device(recipe.device)


def make_model(recipe: Recipe, info: Info | None = None) -> models.Network:
    """Build the network for the recipe's data set (or the one in `info`), with the initial weights of `seed`."""
    info = info or data.info(recipe.data)
    options = {name: getattr(recipe, name) for name in ("width", "stem_stride", "growth")}
    given = {name: value for name, value in options.items() if value is not None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = models.build(recipe.model, classes=info.classes, channels=info.channels, size=info.size, **given)
    model.to(make_device(recipe))
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def make_optimizer(recipe: Recipe, model: nn.Module, *, kind: str, lr: float) -> Optimizer:
    """Return the fused optimizer, which makes one pass over the weights; sharded weights need `foreach`."""
    variant: dict[str, Any] = {"foreach" if recipe.parallel == "fsdp" else "fused": True}
    if kind == "adam":
        return Adam(model.parameters(), lr=lr, weight_decay=recipe.weight_decay, **variant)
    return SGD(
        model.parameters(),
        lr=lr,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
        **variant,
    )


@dataclass(frozen=True)
class LearningRate:
    """`peak` after a linear warm-up of `warmup` steps, multiplied by `factor` at each of the steps in `drops`.

    It is a function of the step, so a resumed run has no scheduler to restore.
    """

    peak: float
    drops: tuple[int, ...]
    factor: float
    warmup: int = 0
    warmup_from: float = 0.0

    def __call__(self, t: int) -> float:
        """Return the learning rate of the step from iterate t to t+1."""
        if t < self.warmup:
            return self.peak * (self.warmup_from + (1 - self.warmup_from) * (t + 1) / self.warmup)
        return self.peak * self.factor ** sum(t >= drop for drop in self.drops)


def training_rate(recipe: Recipe, total: int) -> LearningRate:
    """Return the learning rate of a training of `total` steps."""
    return LearningRate(
        peak=recipe.lr,
        drops=tuple(round(fraction * total) for fraction in recipe.drops),
        factor=recipe.drop_factor,
        warmup=round(recipe.warmup * total),
        warmup_from=recipe.warmup_from,
    )


def finetuning_rate(recipe: Recipe, total: int) -> LearningRate:
    """Return the learning rate of a fine-tuning of `total` steps."""
    drops = tuple(round(fraction * total) for fraction in recipe.finetune_drops)
    return LearningRate(peak=recipe.finetune_lr, drops=drops, factor=recipe.drop_factor)
