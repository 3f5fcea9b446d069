"""Turns SIGINT and SIGTERM into a clean stop after the present step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class StoppedError(Exception):
    """The run in `folder` was asked to stop; everything up to `step` is saved."""

    def __init__(self, number: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} at step {step:,}")
        self.signal, self.step, self.folder = number, step, folder


class Stop:
    """Whether a stop was asked for: 0, or the number of the signal."""

    signal = 0


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Note the first SIGINT or SIGTERM instead of dying of it; a second one works as ever."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        stop.signal = number
        for other, handler in before.items():
            signal.signal(other, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
