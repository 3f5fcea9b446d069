"""Dense weights that a parameter cannot be pointed at: those of shards (FSDP2), and those that wait on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regrow.core.weights import Memory, Weight, masked
from regrow.host.shards import is_sharded, sharded_like
from regrow.host.targets import Target


class Carried(Weight):
    """A target whose dense weights are carried into the parameter's storage before a step, and out of it afterwards.

    `offload` keeps them in the CPU's memory in between.
    """

    def __init__(self, target: Target, memory: Memory, *, offload: bool = False) -> None:
        self._offload, self._inside = offload, False
        super().__init__(target, memory)

    def room(self) -> Tensor:
        """Return the present values, on the device and in the memory format that the dense weights are to have."""
        return self.pruned.cpu() if self._offload else self.pruned

    @property
    def source(self) -> Tensor:
        """The weights that are trained, wherever they are at the moment."""
        return self.pruned if self._inside else super().source

    @property
    def error(self) -> Tensor:
        """The paper's e = ŵ − w; while w is inside there is no ŵ, which would be zero where it is pruned."""
        return torch.where(self.mask, 0, -self.source) if self._inside else super().error

    def show(self) -> None:
        """Carry w in."""
        if self.dense is not None:
            self.pruned.copy_(self.dense)
            self._inside = True

    def write(self) -> None:
        """Carry w out and compute ŵ = m⊙w where it was; whoever is interrupted in between can begin again."""
        if self.dense is not None and self._inside:
            self.dense.copy_(self.pruned)
            self._inside = False
        elif self.dense is not None:
            self.pruned.copy_(self.dense)
        _, mask, pruned = self._views
        masked(pruned, mask, pruned)

    def point_back(self) -> None:
        """Take what the parameter holds for ŵ: it never pointed elsewhere."""
        self._inside = False

    def forget(self) -> None:
        """Drop the dense weights; what is pruned is gone."""
        self._inside = False
        super().forget()


class Sharded(Carried):
    """The rows that lie in this process of a parameter whose storage FSDP knows; saved, they stay shards.

    Distributed checkpoints can cut them anew, for another number of processes.
    """

    def prune(self) -> None:
        """Write ŵ into the storage that the parameter always has."""
        self.write()

    @property
    def touched(self) -> bool:
        """Whether someone else wrote to the parameter, or gave it another storage, since the last `mark`."""
        return self.target.param._version != self._version or self.target.held.data_ptr() != self._places[0]

    def save(self) -> dict[str, Any]:
        """Return mask and w as tensors sharded like the parameter."""
        parameter = self.target.param
        kept = {} if self.dense is None else {"dense": sharded_like(parameter, self.source)}
        return {"masks": sharded_like(parameter, self.mask), "shapes": list(parameter.shape), **kept}

    def saved_mask(self, saved: Tensor) -> Tensor:
        """Return this process's rows of a saved mask."""
        return self.target.part(saved).to(torch.bool)

    def load(self, mask: Tensor, saved: Mapping[str, Any]) -> None:
        """Take over a mask and what `save` returned with it; the parameter holds ŵ."""
        self.bind()
        self.mask.copy_(mask)
        if self.dense is not None:
            self.dense.copy_(self.target.part(saved["dense"]))


def weight_of(target: Target, memory: Memory, *, offload: bool) -> Weight:
    """Return what keeps ŵ in the parameter and w behind it."""
    if is_sharded(target.param):
        return Sharded(target, memory, offload=offload)
    return Carried(target, memory, offload=True) if offload else Weight(target, memory)
