"""Weights that are spread over processes by rows (FSDP2): what this process holds, and what it must ask the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Tell whether the tensor is spread over processes (a DTensor)."""
    return hasattr(tensor, "device_mesh")


def held(tensor: Tensor) -> Tensor:
    """Return what lies in this process: some rows of a sharded tensor, all of any other."""
    if not is_sharded(tensor):
        return tensor.data
    sharded: Any = tensor
    with torch.no_grad():
        part: Tensor = sharded.to_local()
    return part


def sharded_like(parameter: Any, part: Tensor) -> Tensor:
    """Return this process's rows as part of a tensor that is spread like `parameter`."""
    whole: Tensor = type(parameter).from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return whole


def check_placement(name: str, tensor: Any) -> None:
    """Refuse whatever is not spread by rows over one dimension of processes."""
    if is_sharded(tensor) and [str(placement) for placement in tensor.placements] != ["S(0)"]:
        raise TypeError(
            f"{name} is placed as {tuple(tensor.placements)}: pruners know tensors that are sharded by rows over one "
            "dimension of processes, as fully_shard(model) does by default (Shard(0))"
        )


def first_row(tensor: Any) -> int:
    """Return the number of the first row that lies in this process."""
    if not is_sharded(tensor):
        return 0
    rows, processes = int(tensor.shape[0]), int(tensor.device_mesh.size())
    return min(int(tensor.device_mesh.get_local_rank()) * -(-rows // processes), rows)


class Shards:
    """The processes that hold the weights together: here a single one, which asks nobody.

    Every method is called by all processes in the same order.
    """

    spread = False

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the sums over all processes."""
        return numbers

    def before(self, numbers: Tensor) -> Tensor:
        """Return what comes before each of this process's numbers, in the order: number, then process."""
        return numbers.cumsum(0) - numbers

    def rows(self, tensor: Tensor) -> Tensor:
        """Return the rows of all processes in their order."""
        return tensor

    def counts(self, masks: Iterable[Tensor]) -> list[int]:
        """Return how many elements of each mask are True, in all processes together."""
        return self._add([int(torch.count_nonzero(mask)) for mask in masks])

    def sizes(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return how many elements each tensor has, in all processes together."""
        return self._add([tensor.numel() for tensor in tensors])

    def drop_gathered(self) -> None:
        """Let modules gather rows anew: after a forward pass without a backward one they may hold earlier values."""

    def _add(self, numbers: list[int]) -> list[int]:
        return self.sum(torch.tensor(numbers, dtype=torch.int64, device="cpu")).tolist() if self.spread else numbers


ALONE = Shards()


class RowShards(Shards):
    """The processes of a mesh over which the rows of every weight are spread."""

    spread = True

    def __init__(self, mesh: Any, model: nn.Module | None = None) -> None:
        self._group, self._rank, self._size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self._device = mesh.device_type
        modules: Iterable[Any] = () if model is None else model.modules()
        self._gathering = [module for module in modules if hasattr(module, "reshard")]

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the sums over all processes."""
        sums = numbers.to(self._device, copy=True)
        dist.all_reduce(sums, group=self._group)
        return sums.to(numbers.device)

    def before(self, numbers: Tensor) -> Tensor:
        """Return what comes before each of this process's numbers, in the order: number, then process."""
        table = torch.zeros(len(numbers), self._size, dtype=numbers.dtype, device="cpu")
        table[:, self._rank] = numbers
        table = self.sum(table)
        return (table.flatten().cumsum(0).view_as(table) - table)[:, self._rank]

    def rows(self, tensor: Tensor) -> Tensor:
        """Return the rows of all processes in their order."""
        here = torch.tensor([len(tensor)], device="cpu")
        start = int(self.before(here))
        whole = tensor.new_zeros(int(self.sum(here)), *tensor.shape[1:])
        whole[start : start + len(tensor)] = tensor
        return self.sum(whole)

    def drop_gathered(self) -> None:
        """Let modules gather rows anew: after a forward pass without a backward one they may hold earlier values."""
        for module in self._gathering:
            module.reshard()


def shards_of(parameters: Iterable[tuple[str, Any]], model: nn.Module | None = None) -> Shards:
    """Return the processes over which the named parameters of a model are spread: the same for all of them."""
    meshes = {name: parameter.device_mesh if is_sharded(parameter) else None for name, parameter in parameters}
    first, mesh = next(iter(meshes.items()))
    if other := next((name for name, found in meshes.items() if found != mesh), None):
        raise TypeError(
            f"{first} and {other} are not spread over the same processes: shard all targets with one mesh, or none"
        )
    return ALONE if mesh is None else RowShards(mesh, model)
