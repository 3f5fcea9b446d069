"""Measures what new batch-norm statistics do for sparse networks: `python -m benchmarks.batch_norm RUNS`.

It trains ResNet-8 to 95 % in folders of RUNS and evaluates each network twice on held-out training images: as it was
trained, and after `torch.optim.swa_utils.update_bn` with some training batches. The same command resumes.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from typing import Any

from torch.nn import Module
from torch.optim.swa_utils import update_bn

import regrow
from benchmarks.runner import report
from regrow.runs.outcomes import Summary
from regrow.runs.recipe import Recipe
from regrow.train.build import make_sets
from regrow.train.loop import evaluate
from regrow.train.run import run
from reproduce.scales import find_scale

BATCHES = 60
SPARSITY = 0.95
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "DPF": ("dpf", {}),
    "DPF, settle=0.1": ("dpf", {"settle": 0.1}),
    "DPF, soft, settle=0.1": ("dpf", {"settle": 0.1, "options": ("threshold=soft",)}),
    "Incremental": ("incremental", {}),
}


def trained_twice(recipe: Recipe, folder: Path) -> tuple[float, float]:
    """Train `recipe` and return its accuracy before and after new statistics."""
    before = float(run(recipe, folder)["top1"])
    model = regrow.load(folder)
    assert isinstance(model, Module)
    sets = make_sets(recipe)
    # Of an epoch that was not trained: its order and augmentation are new.
    update_bn((images for images, _ in islice(sets.train.epoch(recipe.epochs, 0), BATCHES)), model)
    after = evaluate(model, sets.test)["top1"]
    assert after is not None
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    scale = find_scale("small")
    rows = []
    for name, (method, fields) in WAYS.items():
        found = []
        for seed in range(options.seeds):
            recipe = scale.recipe("resnet8", method, SPARSITY, holdout=scale.holdout, seed=seed, threads=1, **fields)
            found.append(trained_twice(recipe, options.runs / recipe.folder_name()))
            print(f"{name}, seed {seed}: {found[-1][0]:.2f}, with new statistics {found[-1][1]:.2f}", flush=True)
        before, after = (f"{Summary.of(values).mean:.2f}" for values in zip(*found, strict=True))
        gains = ", ".join(f"{new - old:+.2f}" for old, new in found)
        rows.append({"method": name, "top-1": before, "with new statistics": after, "difference (by seed)": gains})
    title = f"Batch-norm statistics from {BATCHES} batches after training (ResNet-8, 95 % pruned, held-out images)"
    report(title, rows, name="batch_norm", command="python -m benchmarks.batch_norm RUNS")


if __name__ == "__main__":
    main()
