"""Cost of DPF: a training step, the optimizer's step alone, and a mask update compared with alternatives."""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import regrow
from benchmarks.runner import interleave, report
from regrow.core.select import cut, find_threshold
from regrow.models import build


class Masked(nn.Module):
    """The usual way to prune: the weight is computed from a parameter and a mask at every forward pass."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


def prune_smallest(scores: Sequence[Tensor], count: int) -> Iterator[Tensor]:
    """Return one mask per tensor, False for the `count` elements of least magnitude over all of them."""
    return cut(scores, find_threshold({f"tensor {index}": score for index, score in enumerate(scores)}, count))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True)


def with_dpf(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    optimizer = sgd(model)
    regrow.DPF(model, optimizer, sparsity=0.9, **options)
    return optimizer


def parametrized(model: nn.Module) -> torch.optim.Optimizer:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            mask = (module.weight.abs() > module.weight.abs().median()).float()
            parametrize.register_parametrization(module, "weight", Masked(mask))
    return sgd(model)


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def training_rows(rounds: int) -> list[dict[str, Any]]:
    """(a) ResNet-20, batch 128, 32x32: a training step with DPF and without, refreshes included by `every=16`."""
    x, y = torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))
    plain = build("resnet20")
    pruned, masked = copy.deepcopy(plain), copy.deepcopy(plain)
    contenders = {
        "plain": training_step(plain, sgd(plain), x, y),
        "DPF": training_step(pruned, with_dpf(pruned), x, y),
        "mask as parametrization": training_step(masked, parametrized(masked), x, y),
    }
    seconds = interleave(contenders, rounds=rounds, warmup=3)
    return [
        {"measured": f"ResNet-20 training step, {name}", "ms": 1e3 * s, "ratio": s / seconds["plain"], "bar": bar}
        for (name, s), bar in zip(seconds.items(), ("", "<= 1.01", ""), strict=True)
    ]


def optimizer_rows(rounds: int) -> list[dict[str, Any]]:
    """(b) The optimizer's step alone, and (d) the time to move its bytes at the measured bandwidth."""
    rows = []
    for label, make in (
        ("ResNet-20", lambda: build("resnet20")),
        ("25 M weights", lambda: build("resnet50", size=224)),
    ):
        plain = make()
        for parameter in plain.parameters():
            parameter.grad = torch.randn_like(parameter) * 1e-3
        pruned = copy.deepcopy(plain)
        for mine, other in zip(pruned.parameters(), plain.parameters(), strict=True):
            mine.grad = other.grad
        seconds = interleave(
            {
                "plain": sgd(plain).step,
                "DPF, no refresh": with_dpf(pruned, every=10**9).step,
                "copy": _copy_of(plain),
            },
            rounds=rounds,
            warmup=3,
        )
        weights = sum(p.numel() for p in plain.parameters())
        # A copy moves 12 bytes per weight (read, read for ownership, write); momentum SGD 20, masking 13 more.
        bandwidth = 12 * weights / seconds["copy"]
        limit = (20 + 13) * weights / bandwidth
        rows += [
            {"measured": f"optimizer step, {label}, plain", "ms": 1e3 * seconds["plain"], "ratio": 1.0, "bar": ""},
            {
                "measured": f"optimizer step, {label}, DPF",
                "ms": 1e3 * seconds["DPF, no refresh"],
                "ratio": seconds["DPF, no refresh"] / seconds["plain"],
                "bar": "<= 2.5",
            },
            {
                "measured": f"bytes moved at {bandwidth / 1e9:.0f} GB/s, {label}",
                "ms": 1e3 * limit,
                "ratio": limit / seconds["plain"],
                "bar": "limit",
            },
        ]
    return rows


def _copy_of(model: nn.Module) -> Callable[[], None]:
    source = [p.detach() for p in model.parameters()]
    target = [torch.empty_like(p) for p in source]
    return lambda: torch._foreach_copy_(target, source)


def refresh_rows(millions: int, rounds: int) -> list[dict[str, Any]]:
    """(c) Threshold and masks at 90 %, compared with library functions that select the k-th of all weights joined.

    A refresh reads every weight twice, for the threshold and for the mask, and writes a mask of one byte: about 10
    bytes per weight, or 1 ns at 10 GB/s. Some ten operations on chunks in the L2 cache take the rest of the time.
    """
    weights = _layers(millions)
    total = sum(w.numel() for w in weights)
    count = round(0.9 * total)

    def joined() -> Tensor:
        return torch.cat([w.abs().view(-1) for w in weights])

    def cut(threshold: Tensor) -> list[int]:
        return [(w.abs() > threshold).numel() for w in weights]

    contenders: dict[str, Callable[[], object]] = {
        "prune_smallest": lambda: [mask.numel() for mask in prune_smallest(weights, count)],
        "kthvalue": lambda: cut(joined().kthvalue(count).values),
        "topk": lambda: cut(joined().topk(total - count, sorted=False).values.min()),
        "copy": lambda: [w.clone() for w in weights],
    }
    seconds = interleave(contenders, rounds=rounds)
    if millions <= 30:  # a sort takes seconds: one round is enough
        seconds |= interleave({"sort": lambda: cut(joined().sort().values[count - 1])}, rounds=1, warmup=0)
    return [
        {
            "measured": f"mask refresh, {millions} M weights, {name}",
            "ms": 1e3 * s,
            "ratio": seconds["kthvalue"] / s,
            "bar": ">= 5 (times faster than kthvalue)" if name == "prune_smallest" and millions <= 30 else "",
        }
        for name, s in seconds.items()
    ]


def _layers(millions: int) -> list[Tensor]:
    """Return layers of the sizes of ResNet-50's (25.5 M weights), repeated until there are enough."""
    shapes = [p.shape for p in build("resnet50", size=224).parameters() if p.ndim > 1]
    shapes *= round(millions * 10**6 / sum(shape.numel() for shape in shapes))
    return [torch.randn(shape) * shape[1:].numel() ** -0.5 for shape in shapes]


def memory_row(millions: int) -> dict[str, Any]:
    """Measure the transient memory of a refresh in a separate process, as a fraction of the weights."""
    child = [sys.executable, "-m", "benchmarks.core", "--peak", str(millions)]
    # Return freed memory to the system at once, so that the peak counts only memory in use.
    exact = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    fraction = float(subprocess.run(child, capture_output=True, text=True, check=True, env=exact).stdout)
    return {
        "measured": f"transient memory of a refresh, {millions} M weights",
        "ms": "",
        "ratio": fraction,
        "bar": "<= 0.10",
    }


def peak(millions: int) -> float:
    """Return the maximum of four measurements."""
    weights = _layers(millions)
    masks = [torch.ones_like(w, dtype=torch.bool) for w in weights]
    count = round(0.9 * sum(w.numel() for w in weights))
    extra = []
    for _ in range(5):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = _peak_bytes()
        for mask, new in zip(masks, prune_smallest(weights, count), strict=True):
            mask.copy_(new)
        extra.append(_peak_bytes() - before)
    return max(extra[1:]) / sum(w.nbytes for w in weights)  # the first one loads libraries


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(peak(options.peak))
        return
    rows = training_rows(options.rounds) + optimizer_rows(options.rounds)
    rows += refresh_rows(25, max(options.rounds // 2, 3)) + refresh_rows(100, 3)
    rows += [memory_row(25), memory_row(100)]
    report("The cost of DPF", rows, name="core")


if __name__ == "__main__":
    main()
