"""From a recipe to the parts of a training: data, network, optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Adam, Optimizer

from regrow import data, models
from regrow.data import Batches
from regrow.data.catalog import Info
from regrow.train.config import Recipe, RecipeError
from regrow.train.world import World

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Sets:
    """What a run trains on and what it is measured on."""

    train: Batches
    test: Batches
    info: Info

    @property
    def steps(self) -> int:
        """Optimizer steps per epoch."""
        return len(self.train)


def make_sets(recipe: Recipe, world: World = World()) -> Sets:  # noqa: B008 - it is immutable
    """Load the images, of which each process sees its share; with `holdout`, the test set is not even opened."""
    device = make_device(recipe)
    share: dict[str, Any] = {"rank": world.rank, "world": world.size, "channels_last": recipe.channels_last}
    images = data.load(recipe.data, "train", limit=recipe.limit)
    if recipe.holdout:
        images, test = images.split(recipe.holdout)
    else:
        test = data.load(recipe.data, "test")
    return Sets(
        train=Batches(images.to(device), recipe.batch, seed=recipe.seed, **share),
        test=Batches.evaluation(test.to(device), _evaluation_batch(len(test), world.size), **share),
        info=images.info,
    )


def _evaluation_batch(images: int, processes: int) -> int:
    """Return the largest batch whose last one, which may be smaller, has an image for every process."""
    return next(size for size in range(EVALUATION_BATCH, 0, -1) if not 0 < images % size < processes)


def make_device(recipe: Recipe) -> torch.device:
    """Return the device, if this machine has it."""
    missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    if missing.get(recipe.device):
        raise RecipeError(f"device {recipe.device!r} is not available here: use --device cpu")
    return torch.device("cuda", torch.cuda.current_device()) if recipe.device == "cuda" else torch.device(recipe.device)


def make_model(recipe: Recipe, info: Info | None = None) -> models.Network:
    """Build the network for the recipe's data, or for what `info` says, with the initial weights of `seed`."""
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
    """Return the optimizer in its fused form, which does one pass over the weights, where sharded ones allow it."""
    form: dict[str, Any] = {"foreach" if recipe.parallel == "fsdp" else "fused": True}
    parameters = model.parameters() if recipe.norm_decay else _groups(model)
    if kind == "adam":
        return Adam(parameters, lr=lr, weight_decay=recipe.weight_decay, **form)
    return SGD(
        parameters,
        lr=lr,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
        **form,
    )


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in two groups, of which that of batch norm has no weight decay."""
    norms = {id(p) for module in model.modules() if isinstance(module, _BatchNorm) for p in module.parameters()}
    return [
        {"params": [p for p in model.parameters() if id(p) not in norms]},
        {"params": [p for p in model.parameters() if id(p) in norms], "weight_decay": 0.0},
    ]
