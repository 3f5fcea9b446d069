"""Times contenders in turns: a busy machine or a clock that slows down then meets them all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from regrow.deploy.bench.deepsparse import DeepSparse

BURST = 0.02
"""Seconds, or three runs, for which a contender runs before it is the next one's turn: its caches are warm then."""

Contender = Callable[[], object] | DeepSparse


def fastest(contenders: Mapping[str, Contender], seconds: float) -> dict[str, float]:
    """The least time of one run of each contender, in turns, for about `seconds` in all but at least three turns."""
    for contender in contenders.values():
        burst(contender, 2)
    times = {name: max(3, min(50, int(BURST / burst(run, 2)))) for name, run in contenders.items()}
    best = dict.fromkeys(contenders, float("inf"))
    deadline, turns = time.monotonic() + seconds, 0
    while turns < 3 or time.monotonic() < deadline:
        for name in list(contenders)[:: -1 if turns % 2 else 1]:
            best[name] = min(best[name], burst(contenders[name], times[name]))
        turns += 1
    return best


def burst(contender: Contender, times: int) -> float:
    """The least seconds of `times` runs in a row."""
    if isinstance(contender, DeepSparse):
        return contender.burst(times)
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        contender()
        best = min(best, time.perf_counter() - start)
    return best
