"""Drive the kernels, or torch where there are none: how threads divide a batch, and what is measured of it."""

from __future__ import annotations

import time
from math import prod

import numpy as np
import torch

from regrow.engine.codegen.build import Library
from regrow.engine.frontend.graph import Graph, macs
from regrow.engine.plan.lower import Plan
from regrow.engine.runtime.fallback import TorchRunner, Values
from regrow.engine.runtime.model import LayerTime, Profile, Sizes
from regrow.engine.runtime.session import Division, Pool, Session, Team

WORTH_DIVIDING = 50_000_000
"""Multiply-accumulates in an image from which it pays to bring threads together after every layer."""


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
        self._pool = Pool[Session]()

    @property
    def sizes(self) -> Sizes:
        """The memory it holds."""
        return Sizes(self.plan.constants.nbytes, self.plan.arena_bytes)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the output for `x` to `y`."""
        images = x.size(0)
        if images == 0:
            return
        session = self._pool.take() or self.session(x, y)
        session.run(session.job_address, x.data_ptr(), y.data_ptr(), images)
        self._pool.give(session)

    def session(self, x: torch.Tensor, y: torch.Tensor, team: Team | None = None) -> Session:
        """A new session, with a team of its own or with one that does nothing else meanwhile."""
        return Session(
            self.library,
            self.plan,
            team or Team(self.library, self.threads),
            floats=(x[0].numel(), y[0].numel()),
            divide=self.divide,
            clock=self.clock,
        )

    def release(self) -> None:
        """Give up the sessions that no call uses, with their threads and memory."""
        self._pool.clear()

    def profile(self, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """The least time of each operation."""
        session = self._pool.take() or self.session(x, y)
        profile = self.profile_in(session, x, y, repeat)
        self._pool.give(session)
        return profile

    def profile_in(self, session: Session, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """The same in one of our sessions."""
        least = np.full(len(self.plan.ops), np.inf)
        for _ in range(repeat):
            taken = np.zeros(len(self.plan.ops))
            session.job.seconds = taken.ctypes.data
            session.run(session.job_address, x.data_ptr(), y.data_ptr(), 1)  # which only one thread may add up
            least = np.minimum(least, taken)
        session.job.seconds = None
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
        self._pool = Pool[tuple[Session, Session]]()

    @property
    def sizes(self) -> Sizes:
        """The memory it holds."""
        whole, rows = self.whole.sizes, self.rows.sizes
        return Sizes(whole.constants + rows.constants, whole.arena + rows.arena)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the output for `x` to `y`."""
        images, threads = x.size(0), self.rows.threads
        if images == 0:
            return
        left = images % threads
        if 2 * left > threads:  # so many are done sooner at the same time
            left = 0
        pair = self._pool.take() or self._sessions(x, y)
        (whole, rows), first = pair, images - left
        x_at, y_at = x.data_ptr(), y.data_ptr()
        if first:
            whole.run(whole.job_address, x_at, y_at, first)
            x_at += 4 * first * whole.job.x_floats
            y_at += 4 * first * whole.job.y_floats
        if left:
            rows.run(rows.job_address, x_at, y_at, left)
        self._pool.give(pair)

    def _sessions(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Session, Session]:
        """One for each plan. Their threads are the same: those of another team would spin for the same cores."""
        session = self.whole.session(x, y)
        return session, self.rows.session(x, y, session.team)

    def profile(self, x: torch.Tensor, y: torch.Tensor, repeat: int) -> Profile:
        """The least time of each operation."""
        pair = self._pool.take() or self._sessions(x, y)
        profile = self.rows.profile_in(pair[1], x, y, repeat)
        self._pool.give(pair)
        return profile


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
