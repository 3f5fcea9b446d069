"""Training in several processes: row-sharded weights (FSDP2), and a check that all ranks have the same masks."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regrow.core.bits import pack, uses_numpy


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
        self._group, self._rank, self._size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self._device = mesh.device_type
        modules: Iterable[Any] = () if model is None else model.modules()
        self._gathering = [module for module in modules if hasattr(module, "reshard")]

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the elementwise sum over all processes."""
        sums = numbers.to(self._device, copy=True)
        dist.all_reduce(sums, group=self._group)
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
    """Ranks that should train the same model have different masks or weights."""


class RankConsistency:
    """Compares digests of masks and weights over the ranks of `process_group` (by default all of them).

    If they differ, every rank raises. Sharded weights need no check: their ranks compute one mask together.
    """

    def __init__(self, process_group: dist.ProcessGroup | None, *, needed: bool) -> None:
        self._group, self._needed, self._started = process_group, needed, False

    def check_start(self, masks: Iterable[Tensor], weights: Iterable[Tensor]) -> None:
        """Raise if the ranks do not start from the same masks and weights; later calls do nothing."""
        if not self._started:
            self._check(
                chain(map(pack, masks), weights),
                "the ranks have different masks or dense weights (digests {}). Attach the pruner after "
                "DistributedDataParallel has synchronized the model, or use the same seed on all ranks; ranks that "
                "train different models need a process group of their own (process_group=...)",
            )
        self._started = True

    def check_masks(self, masks: Iterable[Tensor], *, step: int) -> None:
        """Raise if the ranks have not computed the same masks."""
        self._check(
            map(pack, masks),
            f"at step {step} the ranks computed different masks (digests {{}}): their weights are no longer the same. "
            "Possible causes: a weight written on one rank only, gradients that are not averaged, "
            "different library versions. Resume from a checkpoint of one rank",
        )

    def _check(self, tensors: Iterable[Tensor], problem: str) -> None:
        alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self._group) == 1
        if alone or not self._needed:
            return
        mine = 0
        for tensor in tensors:
            mine = zlib.crc32(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), mine)
        everyone: list[int] = [0] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, mine, group=self._group)
        if len(set(everyone)) > 1:
            raise RankMismatchError(problem.format(", ".join(f"{value:08x}" for value in everyone)))
