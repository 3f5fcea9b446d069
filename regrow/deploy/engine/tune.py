"""Measures which tile suits each convolution on this machine, once, and remembers it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from regrow.deploy.engine.build import Library
from regrow.deploy.engine.fitted import separate_halos
from regrow.deploy.engine.model import noise
from regrow.deploy.engine.plan import write_plan
from regrow.deploy.engine.problems import conv_steps, problem_of
from regrow.deploy.engine.runners import NativeRunner, usual_division
from regrow.deploy.engine.sessions import Division
from regrow.deploy.engine.steps import Schedule
from regrow.deploy.engine.tiles import Problem, Tile, candidates
from regrow.deploy.engine.writer import Once
from regrow.system import cache_folder, cores, digest, remember

ROUNDS = 24
"""Tiles tried for each convolution, the most promising first."""

FINALISTS = 4
"""Of these, how many are tried again and again: the first time may have been disturbed."""

REMATCHES = 6
"""How often."""

TURNS = 15
"""How often it is measured at least whether threads should share an image."""

SHARING_SECONDS = 3.0
"""How much longer at most, for all cores to be free at the same time."""

SECONDS = 20.0
"""When to stop trying, however many are left."""

FIRST_SECONDS = 12.0
"""When to stop trying new ones."""

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Of the network's input and output."""


@dataclass(frozen=True)
class Tuning:
    """What was measured: the fastest tile for each convolution, and what threads should do with single images."""

    tiles: tuple[Tile, ...]
    divide: Division = Division.ALONE


def tuned(schedule: Schedule, library: Library, shapes: Shapes, *, threads: int = 1) -> Tuning:
    """The fastest way to run each layer: as measured earlier, or else measured now.

    Several threads get the tiles that suit one: measured together, each waits for whoever is disturbed.
    """
    problems = [problem_of(step, schedule.lanes, threads) for step in conv_steps(schedule)]
    path = cache_folder() / f"tiles-{_key(threads, library.key, problems)}.json"
    known = _read(path, problems)
    if known is not None:
        return known
    if threads == 1:
        best = Tuning(_Tuner(schedule, library, shapes, problems).best())
    else:
        alone = tuned(schedule, library, shapes).tiles
        best = Tuning(alone, _division(schedule, library, shapes, alone, threads))
    kept = [[tile.together, tile.down, tile.across, tile.blocks] for tile in best.tiles]
    remember(path, json.dumps({"tiles": kept, "divide": best.divide}).encode())
    return best


def _key(threads: int, *identity: object) -> str:
    """What a measurement is known by; with other cores, threads together might be faster or slower."""
    shared = (threads, cores()) if threads > 1 else ()
    return digest(repr((*identity, *shared)).encode())


def _read(path: Path, problems: Sequence[Problem]) -> Tuning | None:
    """What is in the cache; a file that makes no sense counts as missing."""
    try:
        content = json.loads(path.read_text())
        tiles = tuple(Tile(*(int(number) for number in tile)) for tile in content["tiles"])
        divide = Division(content["divide"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    fits = len(tiles) == len(problems) and all(tile in candidates(p) for tile, p in zip(tiles, problems, strict=True))
    return Tuning(tiles, divide) if fits else None


def ranked(taken: Mapping[Tile, Sequence[float]]) -> list[Tile]:
    """The tiles, the fastest first. The median counts: of ratios the least may be a disturbance of the other part."""
    return sorted(taken, key=lambda tile: median(taken[tile]))


def dealt(
    offers: Sequence[Sequence[Tile]], families: Sequence[Sequence[int]], turn: int = 0, match: int = 0
) -> tuple[Tile, ...]:
    """A tile for every convolution, the next ones of its family's offers; in another match, for another member."""
    tiles = {
        number: offer[(turn * len(members) + place + match) % len(offer)]
        for members, offer in zip(families, offers, strict=True)
        for place, number in enumerate(members)
    }
    return tuple(tiles[number] for number in range(len(tiles)))


class _Tuner:
    """Tries one tile for every convolution at a time, in the running network: there the caches are as they will be.

    Layers that are alike share what they learn: each tries another tile, and what these have `taken` (for each weight,
    with the halos that are left to fill, in units of the time of all that is no convolution) is theirs together.
    """

    def __init__(self, schedule: Schedule, library: Library, shapes: Shapes, problems: Sequence[Problem]) -> None:
        self.schedule, self.library = schedule, library
        families: dict[Problem, list[int]] = {}
        for number, problem in enumerate(problems):
            families.setdefault(problem.family, []).append(number)
        self.families = list(families.values())
        self.nonzeros = [max(1.0, problem.nonzeros_per_output) for problem in problems]
        self.offers = [candidates(family)[: ROUNDS * len(members)] for family, members in families.items()]
        self.taken: list[dict[Tile, list[float]]] = [{} for _ in self.families]
        self.once = Once()
        self.x, self.y = noise(*shapes)
        self.start = time.thread_time()

    def best(self) -> tuple[Tile, ...]:
        """As much as there is time for once, then the finalists again and again."""
        self.measure(self.offers, FIRST_SECONDS)
        finalists = [ranked(taken)[:FINALISTS] for taken in self.taken]
        for match in range(REMATCHES):
            self.measure(finalists, SECONDS, match)
        # Whoever was measured once only may have been lucky.
        known = [{tile: taken[tile] for tile in own} for own, taken in zip(finalists, self.taken, strict=True)]
        return dealt([ranked(taken)[:1] for taken in known], self.families)

    def runner(self, tiles: Sequence[Tile]) -> NativeRunner:
        # Measured by the processor time that it gets: a busy machine then misleads nobody.
        plan = write_plan(self.schedule, tiles, once=self.once)
        return NativeRunner(self.library, plan, clock=time.CLOCK_THREAD_CPUTIME_ID)

    def taken_with(self, tiles: Sequence[Tile]) -> list[float]:
        """What each convolution takes; two runners at the same time would take as much memory again."""
        runner = self.runner(tiles)
        layers = runner.profile(self.x, self.y, _repeats(runner, self.x, self.y)).layers
        # What no tile changes tells how fast the processor is just now: on a shared machine that comes and goes.
        pace = sum(layer.seconds for layer in layers if layer.kind != "conv") or 1.0
        return [
            (layer.seconds + sum(layers[halo].seconds for halo in separate_halos(runner.plan, number))) / pace
            for number, layer in enumerate(layers)
            if layer.kind == "conv"
        ]

    def measure(self, offers: list[list[Tile]], seconds: float, match: int = 0) -> None:
        for turn in range(min(ROUNDS, max((len(offer) for offer in offers), default=0))):
            if time.thread_time() > self.start + seconds and all(self.taken):
                return
            tried = dealt(offers, self.families, turn, match)
            convolutions = self.taken_with(tried)
            for members, taken in zip(self.families, self.taken, strict=True):
                for number in members:
                    taken.setdefault(tried[number], []).append(convolutions[number] / self.nonzeros[number])


def _division(schedule: Schedule, library: Library, shapes: Shapes, tiles: Sequence[Tile], threads: int) -> Division:
    """Whether an image is done sooner by all threads than by one; measured, unless it is large enough anyway."""
    plan = write_plan(schedule, tiles, threads=threads)
    if usual_division(plan, threads) is Division.TOGETHER:
        return Division.TOGETHER
    together, alone = (
        NativeRunner(library, plan, threads=threads, divide=divide) for divide in (Division.TOGETHER, Division.ALONE)
    )
    return Division.TOGETHER if sooner(together, alone, *noise(*shapes)) else Division.ALONE


def rows_pay(rows: NativeRunner, whole: NativeRunner, shapes: Shapes) -> bool:
    """Whether an image is done sooner if threads have shares of its rows: as measured earlier, or else now."""
    key = _key(rows.threads, rows.library.key, whole.library.key, rows.plan.macs, whole.divide)
    path = cache_folder() / f"rows-{key}.json"
    try:
        return bool(json.loads(path.read_text())["pays"])
    except (OSError, ValueError, TypeError, KeyError):
        pays = sooner(rows, whole, *noise(*shapes))
    remember(path, json.dumps({"pays": pays}).encode())
    return pays


def sooner(one: NativeRunner, other: NativeRunner, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether `one`, which needs all cores at the same time, is faster; measured in turns until it is, or long enough.

    On a busy machine a core is missing now and then, which makes `one` slower than it is, and is waited for.
    """
    turns = [(_least(one, x, y), _least(other, x, y)) for _ in range(TURNS)]
    end = time.perf_counter() + SHARING_SECONDS
    while not _ahead(turns) and time.perf_counter() < end:
        turns.append((_least(one, x, y), _least(other, x, y)))
    return _ahead(turns)


def _ahead(turns: Sequence[tuple[float, float]]) -> bool:
    """By the least times, which a lucky moment may mislead, or in most turns, which a busy core may."""
    least = min(mine for mine, _ in turns) < min(theirs for _, theirs in turns)
    return least or 2 * sum(mine < theirs for mine, theirs in turns) > len(turns)


def _least(runner: NativeRunner, x: torch.Tensor, y: torch.Tensor) -> float:
    best = float("inf")
    for _ in range(_repeats(runner, x, y)):
        start = time.perf_counter()
        runner.run(x, y)
        best = min(best, time.perf_counter() - start)
    return best


def _repeats(runner: NativeRunner, x: torch.Tensor, y: torch.Tensor) -> int:
    """As many runs as fit into a fifth of a second, within reason."""
    runner.run(x, y)
    start = time.perf_counter()
    runner.run(x, y)
    return int(min(100, max(5, 0.2 / (time.perf_counter() - start))))
