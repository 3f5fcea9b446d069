"""Train one run with several processes: ranks and what they exchange, DDP and FSDP2, and `--nproc`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from regrow.core.distributed import is_sharded
from regrow.runs.stop import stop_with_parent
from regrow.system import cores

Answer = TypeVar("Answer")


class Rank0Error(RuntimeError):
    """Rank 0 failed at something that it does for all ranks; it reports the reason itself."""


class ProcessesDiedError(RuntimeError):
    """A process died more often than the allowed number of restarts."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, seen from the one with number `rank`, and the values they exchange.

    All ranks must call every method, in the same order. Values are exchanged in CPU memory.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_rank0(self) -> bool:
        """Whether this process reads and writes the run folder."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each value over all ranks, bit-identical on each."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, *values: float) -> list[float]:
        """Return the maximum of each value over all ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def on_rank0(self, function: Callable[[], Answer]) -> Answer:
        """Call `function` on rank 0 and return its result on all ranks; if it raises, all ranks raise."""
        if self.size == 1:
            return function()
        answer: list[Any] = [None, None]
        if self.is_rank0:
            try:
                answer[0] = function()
            except Exception as error:
                dist.broadcast_object_list([None, str(error)], device=torch.device("cpu"))
                raise
        dist.broadcast_object_list(answer, device=torch.device("cpu"))
        if answer[1] is not None:
            raise Rank0Error(answer[1])
        found: Answer = answer[0]
        return found

    def _reduce(self, values: Sequence[float], how: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.all_reduce(numbers, how)
        return numbers.tolist()


def launched_rank() -> int:
    """Return the rank that torchrun gave this process; 0 if it was not started by torchrun."""
    return int(os.environ["RANK"]) if dist.is_torchelastic_launched() else 0


@contextmanager
def joined(device: str, *, sharded: bool = False) -> Iterator[Ranks]:
    """Join the processes that torchrun has started, or use an existing process group.

    With `sharded`, a single process gets a process group, too. GPU tensors are sent with NCCL, CPU tensors with gloo.
    """
    if dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    launched = dist.is_torchelastic_launched()
    if not (launched or sharded):
        yield Ranks()
        return
    if launched and device == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, number, size = _rendezvous() if launched else (dist.HashStore(), 0, 1)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=size)
    yield Ranks(dist.get_rank(), dist.get_world_size())
    # Skipped after an error: ranks that wait for this process are released when it exits.
    dist.destroy_process_group()


def _rendezvous() -> tuple[Any, int, int]:
    """Return the store through which the processes find each other, this one's rank, and their number.

    torchrun keeps its store when it restarts the processes. A process that reads the addresses of dead ones waits for
    them, so every start uses its own keys.
    """
    store, number, size = next(rendezvous("env://"))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"start {start}", store), number, size  # type: ignore[attr-defined]


def parallelize(model: nn.Module, ranks: Ranks, parallel: str, inputs: Tensor) -> nn.Module:
    """Return the module to call in training: `model` in DDP, sharded by FSDP2, or as it is for one process.

    Batch norm uses only this process's part of the batch, as is usual; the running statistics are those of rank 0.
    `inputs` is a batch that the model takes.
    """
    if parallel == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = make_mesh(next(model.parameters()).device.type, ranks)
        for child in model.children():
            if any(True for _ in child.parameters()) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
                fully_shard(child, mesh=mesh)  # gathered one after the other
        fully_shard(model, mesh=mesh)
        return model
    if ranks.size == 1:
        return model
    device = next(model.parameters()).device
    network = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    _fix_buckets(network, model, inputs)
    return network


def make_mesh(device: str, ranks: Ranks) -> DeviceMesh:
    """Return a one-dimensional mesh of all ranks."""
    return init_device_mesh(device, (ranks.size,))


def broadcast_buffers(model: nn.Module, ranks: Ranks) -> None:
    """Copy the running statistics of rank 0 to all ranks, as DDP does."""
    if ranks.size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def full_tensor(tensor: Any) -> Tensor:
    """Return a sharded tensor gathered from all ranks, any other tensor unchanged."""
    gathered: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return gathered


def _fix_buckets(network: nn.Module, model: nn.Module, inputs: Tensor) -> None:
    """Make DDP choose its bucket layout before the first step.

    DDP chooses it after the first backward pass, and the layout decides how sums of more than two numbers are rounded.
    A resumed run must have the same layout as an uninterrupted one.
    """
    device, buffers = next(model.parameters()).device, [buffer.clone() for buffer in model.buffers()]
    inputs = inputs.to(device)
    for _ in range(2):  # the new layout is used from the second forward pass
        network(inputs).sum().backward()
    network.zero_grad()
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)


def launch(work: Callable[..., int], arguments: tuple[Any, ...], *, nproc: int, restarts: int) -> int:
    """Run `work(*arguments)` in `nproc` processes on this machine and return the largest exit code.

    When a process dies, all are restarted, at most `restarts` times; a run resumes from its last checkpoint. SIGINT
    and SIGTERM are passed on, and the processes have half a minute to save. The same happens if this process is killed.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # One thread per core in total: by default, every process would use all cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores() // nproc, 1)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        start_method="spawn",
    )
    try:
        codes: dict[int, int] = elastic_launch(config, _serve)(work, arguments)
        return max(codes.values())
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except ChildFailedError as failed:
        number, failure = failed.get_first_failure()
        raise ProcessesDiedError(
            f"process {number} of {nproc} died ({failure.signal_name() or f'exit code {failure.exitcode}'}) after "
            f"{restarts} restarts. Run the same command again to resume from the last checkpoint."
        ) from None


def _serve(work: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    """Run one of the processes of `launch`, which ends with the launcher."""
    # torch lets the system send SIGINT, too: the second signal would end the run before it is saved. SIGINT alone
    # would not end the process, which waits for the launcher to read the exit code.
    if sys.platform == "linux":
        torch.multiprocessing._prctl_pr_set_pdeathsig(0)  # type: ignore[attr-defined]
    with stop_with_parent():
        return work(*arguments)
