"""Measures which tile suits each convolution on this machine, once, and remembers it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from regrow.deploy.container import write_atomically
from regrow.deploy.engine.build import Library, cache_folder
from regrow.deploy.engine.model import NativeRunner
from regrow.deploy.engine.plan import Walks, conv_steps, problem_of, write_plan
from regrow.deploy.engine.schedule import Schedule
from regrow.deploy.engine.tiles import Problem, Tile, candidates

ROUNDS = 24
"""Tiles tried for each convolution, the most promising first."""

SECONDS = 20.0
"""When to stop trying, however many are left."""


def tuned_tiles(plan: Schedule, library: Library, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[Tile, ...]:
    """The fastest tile for each convolution: as measured earlier, or else measured now.

    `shapes` are those of the network's input and output.
    """
    problems = [problem_of(step, plan.lanes) for step in conv_steps(plan)]
    path = cache_folder() / f"tiles-{_key(problems, library)}.json"
    known = _read(path, problems)
    if known is not None:
        return known
    best = _measure(plan, library, shapes, problems)
    write_atomically(path, json.dumps([[t.together, t.down, t.across, t.blocks] for t in best]).encode())
    return best


def _key(problems: Sequence[Problem], library: Library) -> str:
    return hashlib.sha256(f"{library.key}{problems}".encode()).hexdigest()[:20]


def _read(path: Path, problems: Sequence[Problem]) -> tuple[Tile, ...] | None:
    """What is in the cache; a file that makes no sense counts as missing."""
    try:
        tiles = tuple(Tile(*(int(number) for number in tile)) for tile in json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    fits = len(tiles) == len(problems) and all(tile in candidates(p) for tile, p in zip(tiles, problems, strict=True))
    return tiles if fits else None


def _measure(
    plan: Schedule, library: Library, shapes: tuple[tuple[int, ...], tuple[int, ...]], problems: Sequence[Problem]
) -> tuple[Tile, ...]:
    """Try one tile for every convolution at a time, in the running network: there the caches are as they will be."""
    offers = [candidates(problem)[:ROUNDS] for problem in problems]
    seconds: list[dict[Tile, float]] = [{} for _ in problems]
    walks: Walks = {}
    x = torch.randn(1, *shapes[0], generator=torch.Generator().manual_seed(0))
    y = torch.empty(1, *shapes[1])
    deadline = time.monotonic() + SECONDS
    for turn in range(max((len(offer) for offer in offers), default=0)):
        tried = [offer[turn % len(offer)] for offer in offers]
        runner = NativeRunner(library, write_plan(plan, tried, walks=walks))
        runner.run(x, y)
        layers = [layer for layer in runner.profile(x, y, _repeats(runner, x, y)).layers if layer.kind == "conv"]
        for tile, taken, layer in zip(tried, seconds, layers, strict=True):
            taken[tile] = min(taken.get(tile, layer.seconds), layer.seconds)
        if time.monotonic() > deadline:
            break
    return tuple(min(taken, key=taken.__getitem__) for taken in seconds)


def _repeats(runner: NativeRunner, x: torch.Tensor, y: torch.Tensor) -> int:
    """As many runs as fit into a fifth of a second, within reason."""
    start = time.perf_counter()
    runner.run(x, y)
    return int(min(100, max(5, 0.2 / (time.perf_counter() - start))))
