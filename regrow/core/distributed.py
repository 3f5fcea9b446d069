"""Training in several processes: row-sharded weights (FSDP2), and checks that all ranks have the same pruner."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regrow.core.bits import pack, uses_numpy

Value = TypeVar("Value")


def is_sharded(tensor: Tensor) -> bool:
    """Return whether the tensor is sharded over processes (a DTensor)."""
    return hasattr(tensor, "device_mesh")


def local_part(tensor: Tensor) -> Tensor:
    """Return the part that this process stores: some rows of a sharded tensor, all of any other."""
    if not is_sharded(tensor):
        return tensor.data
    sharded: Any = tensor
    with torch.no_grad():
        part: Tensor = sharded.to_local()
    return part


def sharded_like(parameter: Any, part: Tensor) -> Tensor:
    """Return a tensor sharded like `parameter`, of which this process stores `part`."""
    full: Tensor = type(parameter).from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return full


def check_placement(name: str, tensor: Any) -> None:
    """Raise if the tensor is sharded in any other way than by rows over one mesh dimension."""
    if is_sharded(tensor) and [str(placement) for placement in tensor.placements] != ["S(0)"]:
        raise TypeError(
            f"{name} is placed as {tuple(tensor.placements)}: pruners support tensors sharded by rows over one "
            "mesh dimension, as fully_shard(model) does by default (Shard(0))"
        )


def first_row(tensor: Any) -> int:
    """Return the index of the first row that this process stores."""
    if not is_sharded(tensor):
        return 0
    rows, processes = int(tensor.shape[0]), int(tensor.device_mesh.size())
    return min(int(tensor.device_mesh.get_local_rank()) * -(-rows // processes), rows)


class ShardGroup:
    """The processes that store the weights together; this base class is a single process.

    All processes must call the methods in the same order.
    """

    sharded = False
    group: dist.ProcessGroup | None = None
    """The processes, if there are several."""

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the elementwise sum over all processes."""
        return numbers

    def sum_before(self, numbers: Tensor) -> Tensor:
        """Return the sum of all numbers before each of this process's numbers, ordered by index, then by process."""
        return numbers.cumsum(0) - numbers

    def all_rows(self, tensor: Tensor) -> Tensor:
        """Return the rows of all processes, in order."""
        return tensor

    def counts(self, masks: Iterable[Tensor]) -> list[int]:
        """Return the number of True elements of each mask, over all processes."""
        found = [torch.count_nonzero(mask) for mask in masks]
        if len({count.device for count in found}) == 1 and not uses_numpy(found[0]):
            return list(self.sum(torch.stack(found)).tolist())  # one copy to the host
        return self._add([int(count) for count in found])

    def sizes(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the number of elements of each tensor, over all processes."""
        return self._add([tensor.numel() for tensor in tensors])

    def drop_gathered(self) -> None:
        """Free gathered rows, which may hold earlier values after a forward pass without a backward pass."""

    def _add(self, numbers: list[int]) -> list[int]:
        return self.sum(torch.tensor(numbers, dtype=torch.int64, device="cpu")).tolist() if self.sharded else numbers


SINGLE_PROCESS = ShardGroup()


class RowShardGroup(ShardGroup):
    """The processes of a device mesh over which the rows of every weight are sharded."""

    sharded = True

    def __init__(self, mesh: Any, model: nn.Module | None = None) -> None:
        self.group, self._rank, self._size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self._device = mesh.device_type
        modules: Iterable[Any] = () if model is None else model.modules()
        self._gathering = [module for module in modules if hasattr(module, "reshard")]

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the elementwise sum over all processes."""
        sums = numbers.to(self._device, copy=True)
        dist.all_reduce(sums, group=self.group)
        return sums.to(numbers.device)

    def sum_before(self, numbers: Tensor) -> Tensor:
        """Return the sum of all numbers before each of this process's numbers, ordered by index, then by process."""
        table = torch.zeros(len(numbers), self._size, dtype=numbers.dtype, device="cpu")
        table[:, self._rank] = numbers
        table = self.sum(table)
        return (table.flatten().cumsum(0).view_as(table) - table)[:, self._rank]

    def all_rows(self, tensor: Tensor) -> Tensor:
        """Return the rows of all processes, in order."""
        here = torch.tensor([len(tensor)], device="cpu")
        start = int(self.sum_before(here))
        full = tensor.new_zeros(int(self.sum(here)), *tensor.shape[1:])
        full[start : start + len(tensor)] = tensor
        return self.sum(full)

    def drop_gathered(self) -> None:
        """Free gathered rows, which may hold earlier values after a forward pass without a backward pass."""
        for module in self._gathering:
            module.reshard()


def shard_group(parameters: Iterable[tuple[str, Any]], model: nn.Module | None = None) -> ShardGroup:
    """Return the processes over which the named parameters of a model are sharded; it must be the same for all."""
    meshes = {name: parameter.device_mesh if is_sharded(parameter) else None for name, parameter in parameters}
    first, mesh = next(iter(meshes.items()))
    if other := next((name for name, found in meshes.items() if found != mesh), None):
        raise TypeError(
            f"{first} and {other} are not sharded over the same processes: shard all targets with one mesh, or none"
        )
    return SINGLE_PROCESS if mesh is None else RowShardGroup(mesh, model)


class RankMismatchError(RuntimeError):
    """Ranks that should train the same model have different pruners, masks or weights, or a rank has no pruner."""


PATIENCE = 300.0
"""Seconds that a rank waits for the pruners of the others; less if the timeout of the process group is shorter."""

_SAME_ON_ALL = (
    "Attach the same pruner on all ranks, in the same order; ranks that train different models need a process group of "
    "their own (process_group=...)"
)


class RankConsistency:
    """Compares settings, and digests of masks and weights, over the ranks that train a model together.

    These are the ranks of `process_group` (by default all), or those over which the weights are sharded. If they
    differ, every rank raises. Sharded masks and weights need no check: their ranks compute one mask together.
    """

    def __init__(self, process_group: dist.ProcessGroup | None, shards: ShardGroup) -> None:
        self._group = shards.group or process_group
        self._whole, self._started = not shards.sharded, False

    def check_settings(self, settings: Callable[[], Mapping[str, object]]) -> None:
        """Raise if a rank has no pruner after `PATIENCE` seconds, or one with other settings."""
        if self._is_alone():
            return
        self._await_all()
        everyone = self._gather({name: str(value) for name, value in settings().items()})
        if differences := _differences(everyone, dist.get_process_group_ranks(self._group)):
            more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise RankMismatchError(
                f"the ranks have different pruners: {'; '.join(differences[:3])}{more}. {_SAME_ON_ALL}"
            )

    def check_start(
        self, settings: Callable[[], Mapping[str, object]], masks: Iterable[Tensor], weights: Iterable[Tensor]
    ) -> None:
        """Raise if the ranks do not start from the same step, masks and weights; later calls do nothing."""
        if not self._started:
            self.check_settings(settings)
            self._check(
                chain(map(pack, masks), weights),
                "the ranks have different masks or dense weights (digests {}). Attach the pruner after "
                "DistributedDataParallel has synchronized the model, or use the same seed on all ranks; ranks that "
                "train different models need their own process group (process_group=...)",
            )
        self._started = True

    def restart(self) -> None:
        """Let the next `check_start` compare again, because a state was loaded."""
        self._started = False

    def check_masks(self, masks: Iterable[Tensor], *, step: int) -> None:
        """Raise if the ranks have not computed the same masks."""
        self._check(
            map(pack, masks),
            f"at step {step} the ranks computed different masks (digests {{}}): their weights are no longer the same. "
            "Possible causes: a weight written on one rank only, gradients that are not averaged, "
            "different library versions. Resume from a checkpoint of one rank",
        )

    def _check(self, tensors: Iterable[Tensor], problem: str) -> None:
        if self._is_alone() or not self._whole:
            return
        mine = 0
        for tensor in tensors:
            mine = zlib.crc32(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), mine)
        everyone = self._gather(mine)
        if len(set(everyone)) > 1:
            raise RankMismatchError(problem.format(", ".join(f"{value:08x}" for value in everyone)))

    def _is_alone(self) -> bool:
        return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self._group) <= 1

    def _gather(self, mine: Value) -> list[Value]:
        everyone: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, mine, group=self._group)
        return everyone

    def _await_all(self) -> None:
        """Raise if a rank does not make this call in time; a collective operation would hang.

        Calls are counted per rank, in the store of the process group, so that the n-th calls of all ranks are matched.
        """
        group: Any = self._group or dist.group.WORLD
        store: Any = dist.distributed_c10d._get_process_group_store(group)
        ranks, mine = dist.get_process_group_ranks(group), dist.get_rank()
        patience = min(PATIENCE, store.timeout.total_seconds())
        deadline, pause = time.monotonic() + patience, 0.001
        try:
            call = store.add(f"regrow rank {mine}", 1)
            store.add(f"regrow call {call}", 1)
            while store.add(f"regrow call {call}", 0) < len(ranks):
                if time.monotonic() > deadline:
                    late = [rank for rank in ranks if store.add(f"regrow rank {rank}", 0) < call]
                    raise RankMismatchError(_missing(late, f"within {patience:g} seconds"))
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
        except dist.DistError as error:  # the rank that serves the store has ended
            raise RankMismatchError(_missing([], f"before the store was closed ({error})")) from error


def _missing(ranks: list[int], when: str) -> str:
    who = f"rank {', '.join(map(str, ranks))}" if ranks else "a rank"
    return f"{who} has not attached a pruner (or not loaded its state) {when}, and the others have. {_SAME_ON_ALL}"


def _differences(everyone: Sequence[Mapping[str, str]], ranks: Sequence[int]) -> list[str]:
    """Return a text for each setting that is not the same on all ranks."""
    found = []
    for name in dict.fromkeys(chain.from_iterable(everyone)):
        values = [each.get(name, "missing") for each in everyone]
        if other := next((index for index, value in enumerate(values) if value != values[0]), None):
            found.append(f"{name} is {values[0]} on rank {ranks[0]} and {values[other]} on rank {ranks[other]}")
    return found
