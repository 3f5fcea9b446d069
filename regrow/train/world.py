"""The processes that train one run together; a process that is alone asks nobody."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

Answer = TypeVar("Answer")


class FirstFailedError(RuntimeError):
    """Process 0 could not do something for all; it has told why itself."""


class ProcessesDiedError(RuntimeError):
    """A process died more often than it may be started again."""


@dataclass(frozen=True)
class World:
    """This process's number among those that train together, and what they tell each other.

    Every method is called by all processes in the same order. What is exchanged lies in the CPU's memory.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that reads and writes the run folder."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, the same bits on each."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def most(self, *values: float) -> list[float]:
        """Return the largest of each value over all processes."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def ask_first(self, question: Callable[[], Answer]) -> Answer:
        """Return what `question` returns on process 0; where that fails, all processes fail."""
        if self.size == 1:
            return question()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = question()
            except Exception as error:
                dist.broadcast_object_list([None, str(error)], device=torch.device("cpu"))
                raise
        dist.broadcast_object_list(answer, device=torch.device("cpu"))
        if answer[1] is not None:
            raise FirstFailedError(answer[1])
        found: Answer = answer[0]
        return found

    def _reduce(self, values: Sequence[float], how: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.all_reduce(numbers, how)
        return numbers.tolist()


def rank() -> int:
    """Return the number that torchrun gave this process; 0 for one that was started otherwise."""
    return int(os.environ["RANK"]) if dist.is_torchelastic_launched() else 0


@contextmanager
def joined(device: str, *, sharded: bool = False) -> Iterator[World]:
    """Join the processes that torchrun has started with this one, or a process group that is there already.

    What is to be `sharded` needs a group even if there is one process only. Tensors on a GPU travel by NCCL, those in
    the CPU's memory by gloo.
    """
    if dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size())
        return
    launched = dist.is_torchelastic_launched()
    if not (launched or sharded):
        yield World()
        return
    if launched and device == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, number, size = _meeting_point() if launched else (dist.HashStore(), 0, 1)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=size)
    yield World(dist.get_rank(), dist.get_world_size())
    # Not after an error: the others may be waiting for this process, and its end is what tells them.
    dist.destroy_process_group()


def _meeting_point() -> tuple[Any, int, int]:
    """Return the store through which the processes find each other, this one's number, and how many they are.

    torchrun's default rendezvous keeps its store when it starts the processes anew, and a process that reads the
    addresses of those that died waits for them: every start has keys of its own.
    """
    store, number, size = next(rendezvous("env://"))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"start {start}", store), number, size  # type: ignore[attr-defined]
