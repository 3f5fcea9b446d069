"""Turns SIGINT, SIGTERM, SIGHUP and the end of the parent process into a clean stop. Imports without torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from regrow.system import STOP_SIGNALS, stop_this_process

GRACE = 30.0
"""Seconds in which a run must finish its current step and save it before its process is ended."""


class StoppedError(Exception):
    """The run in `folder` was asked to stop; its state at `step` is saved."""

    def __init__(self, number: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} at step {step:,}")
        self.signal, self.step, self.folder = number, step, folder


class Stop:
    """Number of the signal that asked for a stop, or 0."""

    signal = 0


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Record the first SIGINT, SIGTERM or SIGHUP (a closed terminal) instead of exiting; a second one acts as usual.

    A signal that the process ignores, such as SIGHUP under nohup, stays ignored.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

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


@contextmanager
def stop_with_parent() -> Iterator[None]:
    """Ask the work of this process to stop when the process that started it ends, for whatever reason.

    The process then ends as soon as the work has, or after `GRACE` seconds.
    """
    done = threading.Event()
    threading.Thread(target=_watch_parent, args=(done,), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _watch_parent(done: threading.Event) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only the processes of multiprocessing have a parent to watch"
    parent.join()
    if not done.is_set():
        stop_this_process()
        done.wait(GRACE)
    os._exit(1)
