"""Times contenders in turns: a busy machine or a clock that slows down then meets them all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal

from regrow.deploy.bench.deepsparse import DeepSparse

BURST = 0.02
"""Seconds that a contender runs before it is the next one's turn, so that it finds its caches warm."""

Contender = Callable[[], object] | DeepSparse
Clock = Literal["perf_counter", "process_time"]


def fastest(contenders: Mapping[str, Contender], seconds: float, *, clock: Clock = "perf_counter") -> dict[str, float]:
    """The least time of one run of each contender, in turns, for about `seconds` in all but at least three turns.

    By the clock "process_time", for contenders with one thread, waiting for a busy processor does not count.
    """
    times = {name: _times(burst(contender, 2, clock)) for name, contender in contenders.items()}
    best = dict.fromkeys(contenders, float("inf"))
    deadline, turns = time.monotonic() + seconds, 0
    while turns < 3 or time.monotonic() < deadline:
        for name in list(contenders)[:: -1 if turns % 2 else 1]:
            best[name] = min(best[name], burst(contenders[name], times[name], clock))
        turns += 1
    return best


def _times(seconds: float) -> int:
    """How often to run in a turn: at least three times, unless a single run is long."""
    return min(50, max(3 if seconds < 0.2 else 1, int(BURST / seconds)))


def burst(contender: Contender, times: int, clock: Clock) -> float:
    """The least seconds of `times` runs in a row."""
    if isinstance(contender, DeepSparse):
        return contender.burst(times, clock)
    now: Callable[[], float] = getattr(time, clock)
    best = float("inf")
    for _ in range(times):
        start = now()
        contender()
        best = min(best, now() - start)
    return best
