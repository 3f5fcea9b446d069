"""Measures which tile is fastest for each convolution on this machine, and caches the result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from regrow.engine.codegen.build import KernelLibrary
from regrow.engine.codegen.specialize import separate_halos
from regrow.engine.codegen.structs import ThreadMode
from regrow.engine.ops.conv import conv_steps
from regrow.engine.plan.lower import lower, new_memo
from regrow.engine.plan.steps import Schedule
from regrow.engine.plan.tiles import Tile, TileProblem, candidates, problem_of
from regrow.engine.runtime.model import noise
from regrow.engine.runtime.session import NativeRunner, default_mode
from regrow.system import PROCESSOR_CLOCK, cores, digest, kernel_folder, read_cached, write_cached

ROUNDS = 24
"""Tiles tried for each convolution, the cheapest by the cost rule first."""

FINALISTS = 4
"""Number of the fastest tiles that are measured again: the first measurement may have been disturbed."""

REMATCHES = 6
"""How often they are measured again."""

TURNS = 15
"""Minimum number of rounds in which two ways to use threads are compared."""

EXTRA_SECONDS = 3.0
"""Maximum time for additional rounds while some cores are busy."""

SECONDS = 20.0
"""Processor time after which measuring stops."""

FIRST_SECONDS = 12.0
"""Processor time after which no new tiles are tried."""

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Shapes of the network's input and output."""

Timer = Callable[[], float]

_INVALID = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""Errors that reading a damaged cached result may raise."""


@dataclass(frozen=True)
class Tuning:
    """The result: the fastest tile for each convolution, and how threads split single images."""

    tiles: tuple[Tile, ...]
    mode: ThreadMode = ThreadMode.PER_IMAGE


def tuned(schedule: Schedule, library: KernelLibrary, shapes: Shapes, *, threads: int = 1) -> Tuning:
    """Return the fastest way to run each layer, from the cache or measured now.

    Several threads use the tiles that are fastest for one: measured together, all would wait for an interrupted thread.
    """
    problems = [problem_of(step, schedule.lanes, threads) for step in conv_steps(schedule)]
    path = kernel_folder() / f"tiles-{_key(threads, library.key, problems)}.json"
    known = _read(path, problems)
    if known is not None:
        return known
    if threads == 1:
        best = Tuning(_Tuner(schedule, library, shapes, problems).best())
    else:
        alone = tuned(schedule, library, shapes).tiles
        best = Tuning(alone, _mode(schedule, library, shapes, alone, threads))
    kept = [[tile.channels, tile.rows, tile.cols, tile.blocks] for tile in best.tiles]
    write_cached(path, json.dumps({"tiles": kept, "mode": best.mode}).encode())
    return best


def _key(threads: int, *identity: object) -> str:
    """Return the cache key of a measurement; several threads depend on the number of cores."""
    shared = (threads, cores()) if threads > 1 else ()
    return digest(repr((*identity, *shared)).encode())


def _read(path: Path, problems: Sequence[TileProblem]) -> Tuning | None:
    """Read a result from the cache; None if the file is missing or invalid."""
    try:
        content = json.loads(read_cached(path) or b"")
        tiles = tuple(Tile(*(int(number) for number in tile)) for tile in content["tiles"])
        mode = ThreadMode(content["mode"])
    except _INVALID:
        return None
    fits = len(tiles) == len(problems) and all(tile in candidates(p) for tile, p in zip(tiles, problems, strict=True))
    return Tuning(tiles, mode) if fits else None


def ranked(taken: Mapping[Tile, Sequence[float]]) -> list[Tile]:
    """Return the tiles, fastest first, by median: a disturbed reference time can make the minimum ratio too low."""
    return sorted(taken, key=lambda tile: median(taken[tile]))


def assign(
    offers: Sequence[Sequence[Tile]], families: Sequence[Sequence[int]], turn: int = 0, match: int = 0
) -> tuple[Tile, ...]:
    """Return one tile per convolution from the `offers` of its family; `match` rotates them among the members."""
    tiles = {
        number: offer[(turn * len(members) + place + match) % len(offer)]
        for members, offer in zip(families, offers, strict=True)
        for place, number in enumerate(members)
    }
    return tuple(tiles[number] for number in range(len(tiles)))


class _Tuner:
    """Measures one tile per convolution at a time in the whole network, with realistic caches.

    Similar layers form a family: each member tries another tile, and all use the results. Times in `taken` are per
    weight, include the halos that remain to be filled, and are relative to the time of all other operations.
    """

    def __init__(
        self, schedule: Schedule, library: KernelLibrary, shapes: Shapes, problems: Sequence[TileProblem]
    ) -> None:
        self.schedule, self.library = schedule, library
        families: dict[TileProblem, list[int]] = {}
        for number, problem in enumerate(problems):
            families.setdefault(problem.family, []).append(number)
        self.families = list(families.values())
        self.nonzeros = [max(1.0, problem.nonzeros_per_output) for problem in problems]
        self.offers = [candidates(family)[: ROUNDS * len(members)] for family, members in families.items()]
        self.taken: list[dict[Tile, list[float]]] = [{} for _ in self.families]
        self.memo = new_memo()
        self.x, self.y = noise(*shapes)
        self.start = time.thread_time()

    def best(self) -> tuple[Tile, ...]:
        """Measure all tiles once as time permits, then the finalists several times."""
        self.measure(self.offers, FIRST_SECONDS)
        finalists = [ranked(taken)[:FINALISTS] for taken in self.taken]
        for match in range(REMATCHES):
            self.measure(finalists, SECONDS, match)
        # A single measurement may be too low by chance.
        known = [{tile: taken[tile] for tile in own} for own, taken in zip(finalists, self.taken, strict=True)]
        return assign([ranked(taken)[:1] for taken in known], self.families)

    def taken_with(self, tiles: Sequence[Tile]) -> list[float]:
        """Return the time of each convolution. There is one runner at a time, to save memory."""
        plan = lower(self.schedule, tiles, memo=self.memo)
        # Processor time is not affected by other processes.
        runner = NativeRunner(self.library, plan, clock=PROCESSOR_CLOCK)
        layers = runner.profile(self.x, self.y, _repeats(runner, self.x, self.y)).layers
        # The time of the other operations tells how fast the CPU is at the moment, which varies on a shared machine.
        pace = sum(layer.seconds for layer in layers if layer.kind != "conv") or 1.0
        return [
            (layer.seconds + sum(layers[halo].seconds for halo in separate_halos(plan, number))) / pace
            for number, layer in enumerate(layers)
            if layer.kind == "conv"
        ]

    def measure(self, offers: list[list[Tile]], seconds: float, match: int = 0) -> None:
        for turn in range(min(ROUNDS, max((len(offer) for offer in offers), default=0))):
            if time.thread_time() > self.start + seconds and all(self.taken):
                return
            tried = assign(offers, self.families, turn, match)
            convolutions = self.taken_with(tried)
            for members, taken in zip(self.families, self.taken, strict=True):
                for number in members:
                    taken.setdefault(tried[number], []).append(convolutions[number] / self.nonzeros[number])


def _mode(
    schedule: Schedule, library: KernelLibrary, shapes: Shapes, tiles: Sequence[Tile], threads: int
) -> ThreadMode:
    """Measure whether all threads compute an image faster than one, unless the network is clearly large enough."""
    plan = lower(schedule, tiles, threads=threads)
    if default_mode(plan, threads) is ThreadMode.PER_LAYER:
        return ThreadMode.PER_LAYER
    modes = (ThreadMode.PER_LAYER, ThreadMode.PER_IMAGE)
    layer, image = (NativeRunner(library, plan, threads=threads, mode=mode) for mode in modes)
    return modes[0] if faster(*_timers(layer, image, shapes)) else modes[1]


def rows_pay(rows: NativeRunner, whole: NativeRunner, shapes: Shapes) -> bool:
    """Whether slices of rows are faster, from the cache or measured now."""
    key = _key(rows.threads, rows.library.key, whole.library.key, rows.plan.macs, whole.mode)
    path = kernel_folder() / f"rows-{key}.json"
    try:
        return bool(json.loads(read_cached(path) or b"")["pays"])
    except _INVALID:
        pays = faster(*_timers(rows, whole, shapes))
    write_cached(path, json.dumps({"pays": pays}).encode())
    return pays


def _timers(one: NativeRunner, other: NativeRunner, shapes: Shapes) -> tuple[Timer, Timer]:
    x, y = noise(*shapes)
    return partial(_minimum, one, x, y), partial(_minimum, other, x, y)


def faster(one: Timer, other: Timer) -> bool:
    """Whether `one`, which needs all cores at the same time, is faster; measured in turns.

    On a busy machine a core may not be free, which makes `one` look slow; more rounds are then measured for a while.
    """
    turns = [(one(), other()) for _ in range(TURNS)]
    end = time.perf_counter() + EXTRA_SECONDS
    while not _ahead(turns) and time.perf_counter() < end:
        turns.append((one(), other()))
    return _ahead(turns)


def _ahead(turns: Sequence[tuple[float, float]]) -> bool:
    """Compare the minimum times, or the rounds won: an outlier distorts the first, a busy core the second."""
    least = min(mine for mine, _ in turns) < min(theirs for _, theirs in turns)
    return least or 2 * sum(mine < theirs for mine, theirs in turns) > len(turns)


def _minimum(runner: NativeRunner, x: torch.Tensor, y: torch.Tensor) -> float:
    best = float("inf")
    for _ in range(_repeats(runner, x, y)):
        start = time.perf_counter()
        runner.run(x, y)
        best = min(best, time.perf_counter() - start)
    return best


def _repeats(runner: NativeRunner, x: torch.Tensor, y: torch.Tensor) -> int:
    """Return how many runs fit into 0.2 seconds, between 5 and 100."""
    runner.run(x, y)
    start = time.perf_counter()
    runner.run(x, y)
    return int(min(100, max(5, 0.2 / (time.perf_counter() - start))))
