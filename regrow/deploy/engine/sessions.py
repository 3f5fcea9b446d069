"""What a call needs for itself: arenas and a team of threads. Kept for the next call, and for nobody else's process."""

from __future__ import annotations

import ctypes
import os
import weakref
from enum import IntEnum
from typing import Any, Generic, TypeVar

from regrow.deploy.engine import native
from regrow.deploy.engine.build import Library
from regrow.deploy.engine.memory import allocate
from regrow.deploy.engine.plan import Plan
from regrow.system import cores

Kept = TypeVar("Kept")


class Division(IntEnum):
    """How threads divide an image: `enum division` of team.c."""

    ALONE = 0
    TOGETHER = 1
    BY_ROWS = 2


class Team:
    """Threads that wait for work, of any library with the same C files."""

    def __init__(self, library: Library, threads: int) -> None:
        handle = library.handle
        self.address = handle.regrow_team_new(threads, cores())
        if not self.address:
            raise MemoryError("could not start the engine's threads")
        weakref.finalize(self, _free, handle, self.address, os.getpid())
        self.size = handle.regrow_team_size(self.address)
        if self.size < threads:  # the plan has divided the work among all of them
            raise MemoryError(f"the system gives the engine fewer than {threads} threads")


def _free(handle: ctypes.CDLL, address: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has no threads that could end
        handle.regrow_team_free(address)


class Session:
    """A plan's arenas and a team, for one call at a time."""

    def __init__(
        self,
        library: Library,
        plan: Plan,
        team: Team,
        *,
        floats: tuple[int, int],
        divide: Division,
        clock: int,
    ) -> None:
        self.team = team
        arena_bytes = -(-plan.arena_bytes // 4096) * 4096
        self.arenas = allocate(arena_bytes * team.size)
        self.run = library.handle.regrow_run
        self.job = native.Job(
            team=team.address,
            ops=ctypes.addressof(plan.ops),
            constants=plan.constants.ctypes.data,
            arenas=self.arenas.address,
            arena_bytes=arena_bytes,
            x_floats=floats[0],
            y_floats=floats[1],
            count=len(plan.ops),
            divide=divide,
            clock=clock,
        )
        self.job_address = ctypes.addressof(self.job)


class Pool(Generic[Kept]):
    """Sessions that no call uses: no more than can be at work at the same time, and none of a parent process."""

    def __init__(self) -> None:
        self._most = cores()
        self._idle: list[Kept] = []
        _pools.add(self)

    def take(self) -> Kept | None:
        """A session that nobody else uses, to be given back; None if a new one has to be made."""
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
        """Give up what is kept, with its threads and memory."""
        self._idle.clear()


_pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()


def _forget() -> None:
    """In a forked process: the threads of the parent's teams are not there."""
    for pool in _pools:
        pool.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
