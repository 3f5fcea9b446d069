"""Runs the theorems' experiments and writes down what was measured beside what was promised, as flat records."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regrow.theory import bounds
from regrow.theory.bounds import Comparison
from regrow.theory.descent import Trajectory, descend, dpf, one_shot, sgd, slopes, values
from regrow.theory.problems import Logistic, Problem

_POINTS = 25  # numbers of steps that are written down, evenly spread over their logarithm


@dataclass(frozen=True)
class Record:
    """One number of steps of one experiment."""

    theorem: str
    model: str
    sparsity: float
    steps: int
    measured: float
    vanishing: float
    neighbourhood: float
    runs: int

    @property
    def bound(self) -> float:
        """What the theorem promises."""
        return self.vanishing + self.neighbourhood

    def as_row(self) -> dict[str, Any]:
        """The record with its bound, as plain numbers."""
        return {**asdict(self), "bound": self.bound}


@dataclass(frozen=True)
class Scale:
    """How much of each experiment is run."""

    sparsities: tuple[float, ...]
    convex_steps: int
    non_convex_steps: tuple[int, ...]
    seeds: int


FULL = Scale((0.0, 0.5, 0.8, 0.9), 1000, (10, 30, 100, 300, 1000), 3)
SMOKE = Scale((0.0, 0.8), 20, (10, 20), 1)


def convex_rate(mu: float) -> Callable[[int], float]:
    """γ_t = 4/(μ(t+2)), the learning rate of Theorem 4.1."""
    return lambda t: 4 / (mu * (t + 2))


def convex(problem: Problem, *, sparsities: Sequence[float], steps: int, seeds: int) -> list[Record]:
    """Theorem 4.1 and the two statements around it: the pruned model, the dense one behind it, and one-shot pruning."""
    start, rate = _start(problem), convex_rate(problem.mu)
    shown = _spread(steps)
    plain = [descend(problem, start, sgd(), rate=rate, steps=steps, seed=seed) for seed in range(seeds)]
    records = []
    for sparsity in sparsities:
        runs = [descend(problem, start, dpf(sparsity), rate=rate, steps=steps, seed=seed) for seed in range(seeds)]
        rounded = [torch.stack([one_shot(run.dense[t], sparsity) for t in shown]) for run in plain]
        for model, found in (
            ("pruned model", bounds.strongly_convex(problem, runs)),
            ("dense model", bounds.dense_iterate(problem, runs)),
            ("one-shot", bounds.one_shot(problem, plain, shown, rounded)),
        ):
            records += _records("strongly convex", model, sparsity, found, shown, seeds)
    return records


def non_convex(problem: Problem, *, sparsities: Sequence[float], steps: Sequence[int], seeds: int) -> list[Record]:
    """Theorem 4.2: one experiment for each T, because its learning rate γ = c/√T depends on it."""
    start = _start(problem)
    records = []
    for sparsity in sparsities:
        for T in steps:
            rate, runs = tuned(problem, start, sparsity, T, seeds=seeds)
            found = bounds.non_convex(problem, runs, rate=rate)
            records += _records("non-convex", "pruned model", sparsity, found, torch.tensor([T]), seeds)
    return records


def tuned(
    problem: Problem, start: Tensor, sparsity: float, steps: int, *, seeds: int
) -> tuple[float, list[Trajectory]]:
    """γ = c/√T with c = √((f(x_0) − f*)/(LG²)), and the runs made with it.

    G is not known beforehand: a first run with the gradient at the start in its place measures it.
    """
    gap = float(values(problem, start[None])) - problem.least
    squared = float(slopes(problem, start[None]))
    for trial in range(2):
        rate = (gap / (problem.smoothness * squared * steps)) ** 0.5
        count = seeds if trial else 1
        runs = [
            descend(problem, start, dpf(sparsity), rate=lambda t, rate=rate: rate, steps=steps, seed=seed)  # type: ignore[misc]
            for seed in range(count)
        ]
        squared = float(torch.stack([run.gradients for run in runs]).max())
    return rate, runs


def _start(problem: Problem) -> Tensor:
    return torch.randn(problem.dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _spread(steps: int) -> Tensor:
    """Whole numbers from 1 to `steps`, evenly spread over their logarithm."""
    spread: Tensor = torch.logspace(0, math.log10(steps), _POINTS).round().long().unique()
    return spread


def _records(theorem: str, model: str, sparsity: float, found: Comparison, shown: Tensor, runs: int) -> list[Record]:
    rows = zip(
        *(part.tolist() for part in (found.steps, found.measured, found.vanishing, found.neighbourhood)), strict=True
    )
    wanted = set(shown.tolist())
    return [
        Record(theorem, model, sparsity, int(T), measured, vanishing, neighbourhood, runs)
        for T, measured, vanishing, neighbourhood in rows
        if int(T) in wanted
    ]


def run(folder: Path, *, scale: Scale = FULL, progress: Callable[[str], None] = print) -> list[Record]:
    """Every experiment on the digits: records into `folder`/theorems.jsonl, figures beside it."""
    from regrow.theory import figures, picture

    folder.mkdir(parents=True, exist_ok=True)
    figures.save(figures.plane(picture.draw()), folder, "plane")
    ridge, bumps = Logistic.digits(ridge=0.05), Logistic.digits(bumps=0.01)
    progress(f"strongly convex: L = {ridge.smoothness:.4f}, μ = {ridge.mu:.4f}, f* = {ridge.least:.4f}")
    first = convex(ridge, sparsities=scale.sparsities, steps=scale.convex_steps, seeds=scale.seeds)
    progress(f"non-convex: L = {bumps.smoothness:.4f}")
    second = non_convex(bumps, sparsities=scale.sparsities, steps=scale.non_convex_steps, seeds=scale.seeds)
    records = [*first, *second]
    lines = [json.dumps(record.as_row(), ensure_ascii=False) for record in records]
    (folder / "theorems.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pruned = [record for record in first if record.model == "pruned model"]
    title = "Strongly convex (logistic regression with an l2 term)"
    figures.save(figures.theorem(first, title=title, quantity="f − f*"), folder, "strongly-convex")
    figures.save(figures.neighbourhood(pruned, smoothness=ridge.smoothness), folder, "neighbourhood")
    title = "Non-convex (logistic regression with a bounded penalty)"
    figures.save(figures.theorem(second, title=title, quantity="‖∇f(û)‖²"), folder, "non-convex")
    return records
