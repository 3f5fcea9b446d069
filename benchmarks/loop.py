"""Images per second of regrow's training loop beside a bare PyTorch loop on the same network, data and optimizer.

The bare loop is what one would write by hand: batches, forward, backward, step. regrow's loop also sets the learning
rate, checks every loss for NaN, times itself, watches the masks and calls back after every step. The first two train
dense, so that their ratio is the loop's own cost; the third is regrow's loop with DPF, which adds the method's cost.
The images are noise of CIFAR-10's shape, which is the same work as CIFAR-10 and needs no file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.runner import interleave, report
from regrow import data
from regrow.train import parts
from regrow.train.config import Recipe
from regrow.train.loop import Trainer

BAR = 0.98
STEPS, ROUNDS = 6, 10
RECIPE = Recipe(data="cifar10", batch=128, channels_last=True, threads=1, epochs=10_000, lr=0.01, ramp_end=0)
NETWORKS = {"resnet8, stride-2 stem": {"model": "resnet8", "stem_stride": 2}, "resnet20": {"model": "resnet20"}}


class EnoughError(Exception):
    """The steps of one round are done."""


def make_sets() -> parts.Sets:
    info = data.info("cifar10")
    noise = torch.Generator().manual_seed(0)
    count = STEPS * RECIPE.batch
    images = data.ImageSet(
        info=info,
        images=torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=noise),
        labels=torch.randint(0, 10, (count,), generator=noise),
        classes=tuple("0123456789"),
    )
    train = data.Batches(images, RECIPE.batch, channels_last=True)
    return parts.Sets(train, data.Batches.evaluation(images.limit(1), 1, channels_last=True), info)


def bare(recipe: Recipe, sets: parts.Sets) -> Callable[[], None]:
    model = parts.make_model(recipe)
    optimizer = parts.make_optimizer(recipe, model, kind="sgd", lr=recipe.lr)

    def train() -> None:
        model.train()
        for images, labels in sets.train.epoch(0):
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def ours(recipe: Recipe, sets: parts.Sets) -> Callable[[], None]:
    trainer = Trainer(recipe, sets=sets)

    def after_step() -> None:
        if trainer.step % STEPS == 0:
            raise EnoughError

    def train() -> None:
        try:
            trainer.run(after_step, lambda record: None)
        except EnoughError:
            trainer.tally.images = 0  # no evaluation between rounds

    return train


def main() -> None:
    torch.set_num_threads(1)
    sets, rows = make_sets(), []
    for network, options in NETWORKS.items():
        dense = RECIPE.changed(method="dense", **options)
        contenders = {
            "bare PyTorch": bare(dense, sets),
            "regrow, dense": ours(dense, sets),
            "regrow, DPF 90 %": ours(RECIPE.changed(**options), sets),
        }
        seconds = interleave(contenders, rounds=ROUNDS)
        for name, best in seconds.items():
            speed = STEPS * RECIPE.batch / best
            rows.append({"network": network, "loop": name, "images/s": speed, "ratio": seconds["bare PyTorch"] / best})
    report(
        f"Training loop, batch {RECIPE.batch}, float32; the dense loop should be at {BAR} or above", rows, name="loop"
    )


if __name__ == "__main__":
    main()
