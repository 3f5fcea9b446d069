"""Compares DPF from a trained ResNet-8, in a quarter of its epochs, with one-shot pruning and training from scratch.

`REGROW_DATA=... python -m benchmarks.existing RUNS` trains in folders of RUNS, one run at a time, and writes finished
runs to `results/existing/cifar10-resnet8.jsonl`; the same command resumes. The learning rate of each method is the best
of four on 5,000 held-out training images, with a dense network that has not seen them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import collect
from regrow.runs.recipe import Recipe, load_recipe
from regrow.train.run import run

OUT = Path(__file__).parents[1] / "results" / "existing" / "cifar10-resnet8.jsonl"
# In a separate folder: the trainings in `results/` itself used JPEG copies of these images.
SHORT = 2
"""Epochs of pruning: a quarter of the dense training."""
RATES = (0.02, 0.05, 0.1, 0.2)
HOLDOUT: dict[str, Any] = {"holdout": 5000, "seed": 100}


def dense(**fields: Any) -> Recipe:
    """Return the recipe of the dense network: 8 epochs."""
    return load_recipe("cifar-small").changed(method="dense", every="paper", **fields)


def ways(init: str, rate: float, **fields: Any) -> dict[str, Recipe]:
    """Return the recipes that end at 90 % after two epochs, from the dense network `init` or from scratch."""
    base = load_recipe("cifar-small").changed(**fields)
    dpf = base.changed(epochs=SHORT, lr=rate, settle=0.1)
    pruned = base.changed(method="oneshot", every="paper", epochs=0, init=init)
    oneshot = pruned.changed(finetune_epochs=SHORT, finetune_lr=rate)
    return {"dpf": dpf.changed(init=init), "oneshot": oneshot, "scratch": dpf}


class Runs:
    """Trains recipes in a folder and records them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, recipe: Recipe) -> tuple[str, float]:
        """Train a recipe, unless it is done; return its folder and its accuracy."""
        folder = self.folder / recipe.folder_name()
        top1 = float(run(recipe, folder)["top1"])
        collect.add([collect.record(folder, curves=False)], OUT)
        print(f"{recipe.folder_name()}: {top1:.2f} %", flush=True)
        return str(folder), top1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    train = Runs(options.runs)
    held_out, _ = train(dense(**HOLDOUT))
    tried: dict[str, dict[float, float]] = {}
    for rate in RATES:
        for way, recipe in ways(held_out, rate, **HOLDOUT).items():
            tried.setdefault(way, {})[rate] = train(recipe)[1]
    best = {way: max(found, key=found.__getitem__) for way, found in tried.items()}
    for seed in range(options.seeds):
        init, _ = train(dense(seed=seed))
        for way, rate in best.items():
            train(ways(init, rate, seed=seed)[way])
    for seed in range(options.seeds):
        train(load_recipe("cifar-small").changed(settle=0.1, seed=seed))  # as long as the dense training


if __name__ == "__main__":
    main()
