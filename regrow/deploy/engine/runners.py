"""Drive the kernels, or torch where there are none: sessions, teams of threads, and how these divide a batch."""

from __future__ import annotations

import ctypes
import time
import weakref
from enum import IntEnum
from math import prod

import numpy as np
import torch

from regrow.deploy.engine.build import Job, Library
from regrow.deploy.engine.graph import Graph, macs
from regrow.deploy.engine.memory import Block, allocate
from regrow.deploy.engine.model import LayerTime, Profile, Sizes
from regrow.deploy.engine.plan import Plan
from regrow.deploy.engine.reference import TorchRunner, Values
from regrow.host.cores import cores

WORTH_DIVIDING = 50_000_000
"""Multiply-accumulates in an image from which it pays to bring threads together after every layer."""


class Division(IntEnum):
    """How threads divide an image: `enum division` of team.c."""

    ALONE = 0
    TOGETHER = 1
    BY_ROWS = 2


class _Team:
    """Threads that wait for work, of any library with the same kernels.c and team.c."""

    def __init__(self, library: Library, threads: int) -> None:
        handle = library.handle
        self.address = handle.regrow_team_new(threads, cores())
        if not self.address:
            raise MemoryError("could not start the engine's threads")
        weakref.finalize(self, handle.regrow_team_free, self.address)
        if handle.regrow_team_size(self.address) < threads:  # the plan has divided the work among all of them
            raise MemoryError(f"the system gives the engine fewer than {threads} threads")


class _Session:
    """What one call at a time needs: arenas and a team of threads."""

    def __init__(self, runner: NativeRunner, constants: Block, floats: tuple[int, int], team: _Team) -> None:
        handle, plan = runner.library.handle, runner.plan
        self.team = team
        arena_bytes = -(-plan.arena_bytes // 4096) * 4096
        self.arenas = allocate(arena_bytes * runner.threads)
        self.run = handle.regrow_run
        self.job = Job(
            team=team.address,
            ops=ctypes.addressof(plan.ops),
            constants=constants.address,
            arenas=self.arenas.address,
            arena_bytes=arena_bytes,
            x_floats=floats[0],
            y_floats=floats[1],
            count=len(plan.ops),
            divide=runner.divide,
            clock=runner.clock,
        )
        self.job_address = ctypes.addressof(self.job)


class NativeRunner:
    """Runs a plan with the kernels; every call under way has a session of its own.

    `divide` says what threads do with a single image; by default they work on it together if it is worth their while.
    A plan for shares is for as many threads, or for one that measures how long its share takes. `clock`, a constant of
    the module `time`, is what profiles are measured by.
    """

    native = True

    def __init__(
        self,
        library: Library,
        plan: Plan,
        *,
        threads: int = 1,
        divide: Division | None = None,
        clock: int = time.CLOCK_MONOTONIC,
    ) -> None:
        if plan.shares > 1 and threads not in (1, plan.shares):
            raise ValueError(f"a plan for {plan.shares} shares needs as many threads, got {threads}")
        self.library, self.plan, self.threads, self.clock = library, plan, threads, clock
        self.divide = usual_division(plan, threads) if divide is None else divide
        self._constants = allocate(plan.constants.nbytes)
        self._constants.write(plan.constants.tobytes())
        self._idle: list[_Session] = []

    @property
    def sizes(self) -> Sizes:
        """The memory it holds."""
        return Sizes(self.plan.constants.nbytes, self.plan.arena_bytes)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the output for `x` to `y`."""
        images = x.shape[0]
        if images == 0:
            return
        session = self._borrow(x, y)
        session.run(session.job_address, x.data_ptr(), y.data_ptr(), images)
        self._idle.append(session)

    def session(self, x: torch.Tensor, y: torch.Tensor, team: _Team | None = None) -> _Session:
        """A new session, with a team of its own or with one that does nothing else meanwhile."""
        return _Session(self, self._constants, (x[0].numel(), y[0].numel()), team or _Team(self.library, self.threads))

    def release(self) -> None:
        """Give up the sessions that no call uses, with their threads and memory."""
        self._idle.clear()

    def _borrow(self, x: torch.Tensor, y: torch.Tensor) -> _Session:
        """A session that nobody else uses; to be given back to `_idle`."""
        # list.pop and list.append are atomic: two calls never get the same session.
        try:
            return self._idle.pop()
        except IndexError:
            return self.session(x, y)

    def profile(self, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """The least time of each operation."""
        least = np.full(len(self.plan.ops), np.inf)
        session = self._borrow(x, y)
        for _ in range(repeat):
            taken = np.zeros(len(self.plan.ops))
            session.job.seconds = taken.ctypes.data
            session.run(session.job_address, x.data_ptr(), y.data_ptr(), x.shape[0])
            least = np.minimum(least, taken)
        session.job.seconds = None
        self._idle.append(session)
        labels = zip(self.plan.labels, least, strict=True)
        return Profile(tuple(LayerTime(label.name, label.kind, float(s), label.macs) for label, s in labels))


def usual_division(plan: Plan, threads: int) -> Division:
    """What threads do with an image where nothing else is known."""
    if plan.shares > 1:
        return Division.BY_ROWS if threads > 1 else Division.ALONE
    return Division.TOGETHER if plan.macs >= WORTH_DIVIDING else Division.ALONE


class RowsRunner:
    """Runs batches image by image, and the few images that are left over by their rows; there is a plan for either."""

    native = True

    def __init__(self, whole: NativeRunner, rows: NativeRunner) -> None:
        self.whole, self.rows = whole, rows
        for runner in (whole, rows):
            runner.release()
        self._idle: list[tuple[_Session, _Session]] = []

    @property
    def sizes(self) -> Sizes:
        """The memory it holds."""
        whole, rows = self.whole.sizes, self.rows.sizes
        return Sizes(whole.constants + rows.constants, whole.arena + rows.arena)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the output for `x` to `y`."""
        images, threads = x.shape[0], self.rows.threads
        if images == 0:
            return
        left = images % threads
        if 2 * left > threads:  # so many are done sooner at the same time
            left = 0
        try:
            pair = self._idle.pop()
        except IndexError:
            session = self.whole.session(x, y)
            # Threads of another team would spin for the same cores.
            pair = session, self.rows.session(x, y, session.team)
        (whole, rows), first = pair, images - left
        x_at, y_at = x.data_ptr(), y.data_ptr()
        if first:
            whole.run(whole.job_address, x_at, y_at, first)
            x_at += 4 * first * whole.job.x_floats
            y_at += 4 * first * whole.job.y_floats
        if left:
            rows.run(rows.job_address, x_at, y_at, left)
        self._idle.append(pair)

    def profile(self, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """The least time of each operation."""
        return self.rows.profile(x, y, repeat)


class FallbackRunner:
    """Runs a graph with torch."""

    native = False

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._torch = TorchRunner(graph)

    @property
    def sizes(self) -> Sizes:
        """The memory it holds."""
        weights = sum(node.weight.numel() + node.bias.numel() for node in self.graph.weighted())
        largest = max(prod(value.shape) for node in self.graph.nodes for value in node.outputs)
        return Sizes(4 * weights, 4 * largest)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the output for `x` to `y`."""
        y.copy_(self._torch(x))

    def profile(self, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """The least time of each operation."""
        seconds = dict.fromkeys(self.graph.nodes, float("inf"))
        for _ in range(repeat):
            values: Values = {}
            with torch.no_grad():
                for node in self.graph.nodes:
                    start = time.perf_counter()
                    self._torch.step(node, values, x)
                    seconds[node] = min(seconds[node], time.perf_counter() - start)
        kinds = ((node, type(node).__name__.lower()) for node in self.graph.nodes)
        return Profile(tuple(LayerTime(node.name, kind, seconds[node], macs(node)) for node, kind in kinds))
