"""Runs plans: the memory and threads that a call needs, and how threads split a batch.

Sessions are kept for later calls of the same process; a forked process starts with none.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from regrow.engine.codegen.build import KernelLibrary
from regrow.engine.codegen.structs import RunArgs, ThreadMode
from regrow.engine.plan.lower import Plan
from regrow.engine.plan.memory import allocate
from regrow.engine.runtime.model import LayerTime, ModelBytes, Profile
from regrow.system import MONOTONIC_CLOCK, cores

Kept = TypeVar("Kept")

LARGE_NETWORK = 50_000_000
"""Multiply-accumulates per image above which threads split every layer of it."""


class ThreadPool:
    """Threads that wait for work, from any kernel library with the same C files."""

    def __init__(self, library: KernelLibrary, threads: int) -> None:
        handle = library.handle
        self.address = handle.regrow_pool_new(threads, cores())
        if not self.address:
            raise MemoryError("could not start the engine's threads")
        weakref.finalize(self, _free, handle, self.address, os.getpid())
        self.size = handle.regrow_pool_size(self.address)
        if self.size < threads:  # the plan has split the work among all of them
            raise MemoryError(f"the system started {self.size} of the engine's {threads} threads")


def _free(handle: ctypes.CDLL, address: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked process does not have these threads
        handle.regrow_pool_free(address)


class Session:
    """The arenas of a plan and a thread pool, for one call at a time."""

    def __init__(
        self,
        library: KernelLibrary,
        plan: Plan,
        pool: ThreadPool,
        *,
        floats: tuple[int, int],
        mode: ThreadMode,
        clock: int,
    ) -> None:
        self.pool = pool
        arena_bytes = -(-plan.arena_bytes // 4096) * 4096
        self.arenas = allocate(arena_bytes * pool.size)
        self.run = library.handle.regrow_run
        self.args = RunArgs(
            pool=pool.address,
            ops=ctypes.addressof(plan.ops),
            constants=plan.constants.ctypes.data,
            arenas=self.arenas.ctypes.data,
            arena_bytes=arena_bytes,
            x_floats=floats[0],
            y_floats=floats[1],
            count=len(plan.ops),
            mode=mode,
            clock=clock,
        )
        self.args_address = ctypes.addressof(self.args)


class SessionCache(Generic[Kept]):
    """Sessions that no call uses now: at most one per core, and none of a parent process."""

    def __init__(self) -> None:
        self._most = cores()
        self._idle: list[Kept] = []
        _caches.add(self)

    def take(self) -> Kept | None:
        """Remove and return a session; None if there is none."""
        # list.pop and list.append are atomic: two calls never get the same session.
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give(self, session: Kept) -> None:
        """Keep a session for a later call."""
        if len(self._idle) < self._most:
            self._idle.append(session)

    def clear(self) -> None:
        """Drop all sessions, with their threads and memory."""
        self._idle.clear()


_caches: weakref.WeakSet[SessionCache[Any]] = weakref.WeakSet()


def _clear_all() -> None:
    """Drop all sessions in a forked process, which does not have their threads."""
    for cache in _caches:
        cache.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_all)


class NativeRunner:
    """Runs a plan with the kernels; every concurrent call has its own session.

    `mode` is how threads split a single image; by default they split the layers of large networks. A plan with
    slices needs one thread per slice, or a single one, which then computes (and times) the first slice only. `clock`
    is the clock of profiles, a constant of the module `time`.
    """

    native = True

    def __init__(
        self,
        library: KernelLibrary,
        plan: Plan,
        *,
        threads: int = 1,
        mode: ThreadMode | None = None,
        clock: int = MONOTONIC_CLOCK,
    ) -> None:
        if plan.slices > 1 and threads not in (1, plan.slices):
            raise ValueError(f"a plan for {plan.slices} slices needs as many threads, got {threads}")
        self.library, self.plan, self.threads, self.clock = library, plan, threads, clock
        self.mode = default_mode(plan, threads) if mode is None else mode
        self._sessions = SessionCache[Session]()

    @property
    def sizes(self) -> ModelBytes:
        """The memory it holds."""
        return ModelBytes(self.plan.constants.nbytes, self.plan.arena_bytes)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the output for `x` to `y`."""
        images = x.size(0)
        if images == 0:
            return
        session = self._sessions.take() or self.session(x, y)
        session.run(session.args_address, x.data_ptr(), y.data_ptr(), images)
        self._sessions.give(session)

    def session(self, x: torch.Tensor, y: torch.Tensor, pool: ThreadPool | None = None) -> Session:
        """Make a session, with its own thread pool or with one that is idle."""
        return Session(
            self.library,
            self.plan,
            pool or ThreadPool(self.library, self.threads),
            floats=(x[0].numel(), y[0].numel()),
            mode=self.mode,
            clock=self.clock,
        )

    def release(self) -> None:
        """Drop the sessions that no call uses, with their threads and memory."""
        self._sessions.clear()

    def profile(self, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """Return the minimum time of each operation."""
        session = self._sessions.take() or self.session(x, y)
        profile = self.profile_in(session, x, y, repeat)
        self._sessions.give(session)
        return profile

    def profile_in(self, session: Session, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """Return the same, measured in a given session."""
        least = np.full(len(self.plan.ops), np.inf)
        for _ in range(repeat):
            taken = np.zeros(len(self.plan.ops))
            session.args.seconds = taken.ctypes.data
            session.run(session.args_address, x.data_ptr(), y.data_ptr(), 1)  # one image: only one thread adds up times
            least = np.minimum(least, taken)
        session.args.seconds = None
        labels = zip(self.plan.labels, least, strict=True)
        return Profile(tuple(LayerTime(label.name, label.kind, float(s), label.macs) for label, s in labels))


def default_mode(plan: Plan, threads: int) -> ThreadMode:
    """Return how threads split a single image if nothing was measured."""
    if plan.slices > 1:
        return ThreadMode.PER_ROWS if threads > 1 else ThreadMode.PER_IMAGE
    return ThreadMode.PER_LAYER if plan.macs >= LARGE_NETWORK else ThreadMode.PER_IMAGE


class RowsRunner:
    """Runs batches image by image, and the few images that are left over by slices of rows; each has its own plan."""

    native = True

    def __init__(self, whole: NativeRunner, rows: NativeRunner) -> None:
        self.whole, self.rows = whole, rows
        for runner in (whole, rows):
            runner.release()
        self._sessions = SessionCache[tuple[Session, Session]]()

    @property
    def sizes(self) -> ModelBytes:
        """The memory it holds."""
        whole, rows = self.whole.sizes, self.rows.sizes
        return ModelBytes(whole.constants + rows.constants, whole.arena + rows.arena)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the output for `x` to `y`."""
        images, threads = x.size(0), self.rows.threads
        if images == 0:
            return
        left = images % threads
        if 2 * left > threads:  # with this many, one image per thread is faster
            left = 0
        pair = self._sessions.take() or self._new_pair(x, y)
        (whole, rows), first = pair, images - left
        x_at, y_at = x.data_ptr(), y.data_ptr()
        if first:
            whole.run(whole.args_address, x_at, y_at, first)
            x_at += 4 * first * whole.args.x_floats
            y_at += 4 * first * whole.args.y_floats
        if left:
            rows.run(rows.args_address, x_at, y_at, left)
        self._sessions.give(pair)

    def _new_pair(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Session, Session]:
        """Make one session per plan. They share their threads: those of two pools would compete for the cores."""
        session = self.whole.session(x, y)
        return session, self.rows.session(x, y, session.pool)

    def profile(self, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """Return the minimum time of each operation."""
        pair = self._sessions.take() or self._new_pair(x, y)
        profile = self.rows.profile_in(pair[1], x, y, repeat)
        self._sessions.give(pair)
        return profile
