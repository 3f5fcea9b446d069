"""The theorems' experiments: measured values next to their bounds."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regrow.report.render import can_draw
from regrow.report.tables import percent
from reproduce.experiments import Experiment
from reproduce.results import ResultStore
from reproduce.scales import Scale
from reproduce.theory import bounds
from reproduce.theory.bounds import BoundComparison
from reproduce.theory.descent import Trajectory, descend, dpf, draw, one_shot, sgd, slopes, values
from reproduce.theory.problems import Logistic, Problem
from reproduce.views import Content, table

_POINTS = 25  # recorded numbers of steps, evenly spaced on a logarithmic scale


@dataclass(frozen=True)
class Record:
    """One number of steps of one experiment."""

    theorem: str
    model: str
    sparsity: float
    steps: int
    measured: float
    vanishing: float
    neighborhood: float
    runs: int

    @property
    def bound(self) -> float:
        """The bound of the theorem."""
        return self.vanishing + self.neighborhood

    def as_row(self) -> dict[str, Any]:
        """Return the record with its bound, for JSON."""
        return {**asdict(self), "bound": self.bound}


@dataclass(frozen=True)
class StudySize:
    """Size of the experiments."""

    sparsities: tuple[float, ...]
    convex_steps: int
    non_convex_steps: tuple[int, ...]
    seeds: int


FULL = StudySize((0.0, 0.5, 0.8, 0.9), 1000, (10, 30, 100, 300, 1000), 3)
SMOKE = StudySize((0.0, 0.8), 20, (10, 20), 1)


def convex_rate(mu: float) -> Callable[[int], float]:
    """γ_t = 4/(μ(t+2)), the learning rate of Theorem 4.1."""
    return lambda t: 4 / (mu * (t + 2))


def convex(problem: Problem, *, sparsities: Sequence[float], steps: int, seeds: int) -> list[Record]:
    """Theorem 4.1 and its two companions: for the pruned model, the dense model and one-shot pruning."""
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
    """Theorem 4.2, with one experiment for each T, because the learning rate γ = c/√T depends on it."""
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
    """Return γ = c/√T with c = √((f(x_0) − f*)/(LG²)), and the runs with it.

    G is not known in advance: a first run, with the gradient at the start instead, measures it.
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
    """Return integers from 1 to `steps`, evenly spaced on a logarithmic scale."""
    spread: Tensor = torch.logspace(0, math.log10(steps), _POINTS).round().long().unique()
    return spread


def _records(
    theorem: str, model: str, sparsity: float, found: BoundComparison, shown: Tensor, runs: int
) -> list[Record]:
    rows = zip(
        *(part.tolist() for part in (found.steps, found.measured, found.vanishing, found.neighborhood)), strict=True
    )
    wanted = set(shown.tolist())
    return [
        Record(theorem, model, sparsity, int(T), measured, vanishing, neighborhood, runs)
        for T, measured, vanishing, neighborhood in rows
        if int(T) in wanted
    ]


def run(folder: Path, *, size: StudySize = FULL, progress: Callable[[str], None] = print) -> list[Record]:
    """Run every experiment on the digits; write `folder`/theorems.jsonl and figures."""
    from reproduce.theory import figures

    folder.mkdir(parents=True, exist_ok=True)
    figures.save(figures.plane(draw()), folder, "plane")
    ridge, bumps = Logistic.digits(ridge=0.05), Logistic.digits(bumps=0.01)
    progress(f"strongly convex: L = {ridge.smoothness:.4f}, μ = {ridge.mu:.4f}, f* = {ridge.least:.4f}")
    first = convex(ridge, sparsities=size.sparsities, steps=size.convex_steps, seeds=size.seeds)
    progress(f"non-convex: L = {bumps.smoothness:.4f}")
    second = non_convex(bumps, sparsities=size.sparsities, steps=size.non_convex_steps, seeds=size.seeds)
    records = [*first, *second]
    lines = [json.dumps(record.as_row(), ensure_ascii=False) for record in records]
    (folder / "theorems.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pruned = [record for record in first if record.model == "pruned model"]
    title = "Strongly convex (logistic regression with an l2 term)"
    figures.save(figures.theorem(first, title=title, quantity="f − f*"), folder, "strongly-convex")
    figures.save(figures.neighborhood(pruned, smoothness=ridge.smoothness), folder, "neighborhood")
    title = "Non-convex (logistic regression with a bounded penalty)"
    figures.save(figures.theorem(second, title=title, quantity="‖∇f(û)‖²"), folder, "non-convex")
    return records


def main() -> None:
    """Run all experiments into the folder given on the command line, and print whether the bounds hold."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m reproduce.theory.study FOLDER")
    records = run(Path(sys.argv[1]))
    last = {(r.theorem, r.model, r.sparsity): r for r in records}
    for record in last.values():
        print(
            f"{record.theorem:<16} {record.model:<13} {record.sparsity:>4.0%} pruned  T = {record.steps:<5} "
            f"measured {record.measured:.3g}  bound {record.bound:.3g}"
        )
    broken = [record for record in records if not record.measured <= record.bound]
    print(f"{len(records) - len(broken)} of {len(records)} measurements are within their bound")
    sys.exit(bool(broken))


def _prove(scale: Scale, folder: Path) -> None:
    """Run the theorems' experiments unless they are finished, in full except at scale smoke."""
    target = folder / "theory"
    if not (target / "theorems.jsonl").is_file():
        run(target, size=SMOKE if scale.name == "smoke" else FULL)


def read_theorems(store: ResultStore) -> list[dict[str, Any]]:
    """Return the records of finished experiments."""
    path = store.file("theorems.jsonl")
    return [] if path is None else [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _theorems_content(scale: Scale, store: ResultStore) -> Content:
    records = read_theorems(store)
    last = {(record["theorem"], record["model"], record["sparsity"]): record for record in records}
    lines = [
        [
            record["theorem"],
            record["model"],
            percent(record["sparsity"]),
            f"{record['steps']}",
            f"{record['measured']:.2g}",
            f"{record['bound']:.2g}",
        ]
        for record in last.values()
    ]
    held = sum(record["measured"] <= record["bound"] for record in records)
    text = f"{held} of {len(records)} measurements are within their bound." if records else "Not run."
    head = ["theorem", "model", "pruned", "steps T", "measured", "bound"]
    return f"{text}\n\n{table(head, lines)}" if lines else text, records, ()


def _paint(scale: Scale, folder: Path) -> None:
    from reproduce.theory import figures

    if can_draw():
        figures.save(figures.plane(draw()), folder, "picture-plane")


def _picture_content(scale: Scale, store: ResultStore) -> Content:
    delivered = draw().delivered
    rows = [{"method": method, "f": value} for method, value in delivered.items()]
    lines = [[method, f"{value:.2f}"] for method, value in delivered.items()]
    drawn = "\n\n![two weights](picture-plane.svg)" if store.file("picture-plane.svg") else ""
    return table(["delivered by", "f"], lines) + drawn, rows, ()


EXPERIMENTS = (
    Experiment(
        "theorems",
        "Theorems 4.1 and 4.2: measurements and bounds",
        _theorems_content,
        work=_prove,
        cost="minutes, no training",
    ),
    Experiment(
        "picture",
        "The 2-D picture: one weight of two may stay",
        _picture_content,
        work=_paint,
        cost="seconds, no training",
    ),
)


if __name__ == "__main__":
    main()
