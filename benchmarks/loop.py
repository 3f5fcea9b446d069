"""Images per second of regrow's training loop and of a plain PyTorch loop on the same network, data and optimizer.

The plain loop is written by hand: batches, forward, backward, step. regrow's loop also sets the learning rate, checks
every loss for NaN, measures its time, records the masks and calls back after every step. In dense training, their ratio
is the cost of regrow's loop; with DPF it includes the cost of the method. The loops take turns step by step, so that a
slower machine slows both; the ratio is that of the median steps. The images are noise of CIFAR-10's shape, which is the
same work as CIFAR-10 and needs no file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.runner import report
from regrow import data
from regrow.runs.recipe import Recipe
from regrow.train import build
from regrow.train.loop import Trainer

BAR = 0.98
WARMUP = 5
RECIPE = Recipe(data="cifar10", batch=128, channels_last=True, threads=1, epochs=10_000, lr=0.01, ramp_end=0)
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet8, stride-2 stem": {"model": "resnet8", "stem_stride": 2},
    "resnet20": {"model": "resnet20"},
}
STEPS = {"resnet8, stride-2 stem": 400, "resnet20": 60}
LOOPS = {"regrow, dense": "dense", "regrow, DPF 90 %": "dpf"}


class EnoughError(Exception):
    """The steps are done."""


def make_sets(steps: int) -> build.Sets:
    info = data.info("cifar10")
    noise = torch.Generator().manual_seed(0)
    count = steps * RECIPE.batch
    images = data.ImageSet(
        info=info,
        images=torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=noise),
        labels=torch.randint(0, 10, (count,), generator=noise),
        classes=tuple("0123456789"),
    )
    train = data.Batches(images, RECIPE.batch, channels_last=True)
    return build.Sets(train, data.Batches.evaluation(images.limit(1), 1, channels_last=True), info)


def bare(recipe: Recipe, sets: build.Sets) -> Iterator[None]:
    """Train by hand, a step each time that the iterator is advanced."""
    model = build.make_model(recipe)
    optimizer = build.make_optimizer(recipe, model, kind="sgd", lr=recipe.lr)
    model.train()
    for images, labels in sets.train.epoch(0):
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def compare(recipe: Recipe, steps: int) -> tuple[float, float]:
    """Return the median seconds of a step of the plain loop (dense) and of regrow's loop with `recipe`."""
    sets = make_sets(steps + 1)
    by_hand = bare(recipe.changed(method="dense"), sets)
    ours, theirs = [], []

    def after_step() -> None:
        nonlocal resumed
        entered = time.perf_counter()
        ours.append(entered - resumed)
        next(by_hand)
        resumed = time.perf_counter()
        theirs.append(resumed - entered)
        if len(ours) == steps:
            raise EnoughError

    trainer = Trainer(recipe, sets=sets)
    resumed = time.perf_counter()
    try:
        trainer.run(after_step, lambda record: None)
    except EnoughError:
        return statistics.median(theirs[WARMUP:]), statistics.median(ours[WARMUP:])
    raise AssertionError("the epoch is one step longer than the comparison")


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for network, options in NETWORKS.items():
        for name, method in LOOPS.items():
            by_hand, ours = compare(RECIPE.changed(method=method, **options), STEPS[network])
            rows.append(
                {
                    "network": network,
                    "loop": name,
                    "images/s": RECIPE.batch / ours,
                    "bare PyTorch images/s": RECIPE.batch / by_hand,
                    "ratio": by_hand / ours,
                }
            )
    report(
        f"Training loop, batch {RECIPE.batch}, float32; the dense loop should be at {BAR} or above", rows, name="loop"
    )


if __name__ == "__main__":
    main()
