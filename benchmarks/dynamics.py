"""What it costs to watch masks: an observation against the sixteen training steps between two refreshes.

One thread, float32, batches of 128 CIFAR-sized images of noise; masks at 90 % of which 1 % of elements flip.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.runner import Row, interleave, report
from regrow.analysis import Dynamics
from regrow.core.targets import find_targets
from regrow.models import build

EVERY = 16
BATCH = 128


def random_masks(shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    return {name: torch.rand(shape) < 0.1 for name, shape in shapes.items()}


def measure(name: str) -> Row:
    model = build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    one = random_masks({target.name: target.param.shape for target in find_targets(model)})
    other = {name: mask ^ (torch.rand(mask.shape) < 0.01) for name, mask in one.items()}
    dynamics = Dynamics(one)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def observe() -> None:
        dynamics.observe(other)
        dynamics.observe(one)

    def epoch_end() -> None:
        dynamics.epoch_end(other)
        dynamics.epoch_end(one)

    best = interleave({"step": step, "observe": observe, "epoch_end": epoch_end}, rounds=8)
    return {
        "network": name,
        "weights": sum(mask.numel() for mask in one.values()),
        "step ms": 1e3 * best["step"],
        "observe ms": 1e3 * best["observe"] / 2,
        "epoch end ms": 1e3 * best["epoch_end"] / 2,
        "observe / 16 steps %": 100 * best["observe"] / 2 / (EVERY * best["step"]),
    }


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report("Watching masks beside training", [measure(name) for name in ("resnet20", "wrn28-2")], name="dynamics")


if __name__ == "__main__":
    main()
