"""Where pruned and dense weights live: swapped in place, offloaded to the CPU, sharded over processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from regrow.checks import warn
from regrow.core.bits import bit_view, like, on_one_accelerator, pack, unpack
from regrow.core.distributed import ShardGroup, is_sharded, sharded_like
from regrow.core.targets import Target, check_storage

_SAMPLED = 64  # elements of a layer compared at each step (up to twice as many)
_LAYERS = 32  # layers compared at each step; deeper networks need several steps


class Memory(Enum):
    """What happens to pruned weights."""

    KEEP = "keep"
    """They are kept outside the model and trained with it (feedback)."""
    FORGET = "forget"
    """They are set to zero after every step."""
    SOFT = "soft"
    """They are set to zero at a mask update, and may grow until the next one."""


class Weight:
    """A pruned parameter: its mask m, its pruned weights ŵ = m⊙w, and the dense weights w if they are kept.

    Between steps the parameter holds ŵ in the storage it has always had, so that compiled graphs, DDP buckets and
    CUDA graphs stay valid. During a step it points at w, which the optimizer updates directly: w is never
    reconstructed from ŵ and an error, so nothing is rounded.
    """

    def __init__(self, target: Target, memory: Memory) -> None:
        self.target, self.memory, self.pruned = target, memory, target.local
        self.mask = torch.ones_like(self.pruned, dtype=torch.bool)
        self.dense = self.dense_template().clone() if memory is Memory.KEEP else None
        self.bind_storage()

    def bind_storage(self) -> None:
        """Use the parameter's current storage for ŵ, and make the views with which ŵ is computed."""
        check_storage(self.target)
        self.pruned = self.target.local
        self.mask = like(self.pruned, self.mask, torch.bool)
        if self.dense is not None:
            self.dense = like(self.dense_template(), self.dense, self.pruned.dtype)
        self._addresses = (self.pruned.data_ptr(), self.source.data_ptr())
        self._views = tuple(map(bit_view, (self.source, self.mask, self.pruned)))
        self.record_version()

    def dense_template(self) -> Tensor:
        """Return ŵ on the device and in the memory format for w."""
        return self.pruned

    @property
    def source(self) -> Tensor:
        """The weights that are trained: w if it is kept, otherwise those of the model."""
        return self.pruned if self.dense is None else self.dense

    @property
    def kept(self) -> Tensor:
        """Where the model has weights: in the mask and, with `Memory.SOFT`, where weights have grown since."""
        return self.mask | (self.pruned != 0) if self.memory is Memory.SOFT else self.mask

    @property
    def error(self) -> Tensor:
        """The paper's e = ŵ − w."""
        return self.pruned - self.source.to(self.pruned.device)

    def swap_in_dense(self) -> None:
        """Let the parameter hold w."""
        if self.dense is not None:
            self.target.param.data = self.dense

    def write_pruned(self) -> None:
        """Compute ŵ and let the parameter hold it, in its own storage."""
        self.take_replaced_storage()
        self.compute_pruned()
        self.target.param.data = self.pruned

    def take_replaced_storage(self) -> None:
        """Copy w from the parameter if the optimizer has replaced its storage instead of updating w in place."""
        if self.target.param.data_ptr() not in self._addresses:
            self.source.copy_(self.target.param.data)

    @property
    def joins_foreach(self) -> bool:
        """Whether ŵ is computed together with that of other weights: on accelerators, where launches are slow."""
        return type(self) is Weight and isinstance(self._views[0], Tensor)

    @property
    def bits(self) -> tuple[Tensor, Tensor, Tensor]:
        """The bits of w, m and ŵ in memory order, for weights that join foreach operations."""
        source, mask, pruned = self._views
        return source, mask, pruned

    def compute_pruned(self) -> None:
        """Compute ŵ = m⊙w."""
        apply_mask(*self._views)

    def reset_storage(self) -> None:
        """If the parameter points at w, copy its values to the storage of ŵ and point it there."""
        if self.dense is not None and self.target.param.data_ptr() == self.dense.data_ptr():
            self.pruned.copy_(self.dense)
            self.target.param.data = self.pruned

    def drop_dense(self) -> None:
        """Free the dense weights; pruned weights are lost."""
        self.memory, self.dense = Memory.FORGET, None
        self.bind_storage()

    def record_version(self) -> None:
        """Record the parameter's version, so that `was_modified` sees later writes."""
        self._version = self.target.param._version

    @property
    def was_modified(self) -> bool:
        """Whether other code wrote to the parameter or replaced its storage since `record_version`."""
        parameter = self.target.param
        return parameter._version != self._version or parameter.data_ptr() != self._addresses[0]

    def sample_matches(self, step: int) -> bool:
        """Return whether a few elements still equal m⊙w: writes through `.data` do not change the version.

        Every step compares other elements, so that repeated writes are found. It is done on the CPU only, where it
        takes microseconds; on other devices it would have to wait for the device.
        """
        source, mask, pruned = self._views
        if self.dense is None or not isinstance(pruned, np.ndarray):
            return True
        few = self.sample(step)
        same: bool = (source[few] * mask[few]).tobytes() == pruned[few].tobytes()
        return same

    def sample(self, step: int) -> slice:
        """Return which elements, in memory order, `sample_matches` compares at a step."""
        distance = self.pruned.numel() // _SAMPLED or 1
        return slice(step % distance, None, distance)

    def accept_external_write(self) -> bool:
        """Take over weights written by other code; return whether they are non-zero outside the mask.

        If they are zero outside the mask (a swapped average, a checkpoint of the pruned model), they replace the kept
        part of w, and the pruned part stays. Otherwise they replace all of w.
        """
        self.bind_storage()
        outside = bool(torch.count_nonzero(self.pruned[~self.mask]))
        if self.dense is not None:
            w = self.dense.to(self.pruned.device)
            self.dense.copy_(self.pruned if outside else torch.where(self.mask, self.pruned, w))
        return outside and self.memory is not Memory.SOFT

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs: the packed mask, and the error e where it is not zero."""
        source = self.source  # ŵ is zero where it is pruned, so e = −w there, also while the parameter holds w
        kept = {} if self.dense is None else {"error": -source[~self.mask.to(source.device)].cpu()}
        return {"masks": pack(self.mask), "shapes": list(self.target.param.shape), **kept}

    def saved_mask(self, saved: Tensor) -> Tensor:
        """Return the mask that `save` stored as `saved`."""
        return unpack(saved, self.mask.shape, self.target.name)

    def load(self, mask: Tensor, saved: Mapping[str, Any]) -> None:
        """Restore a mask and what `save` returned with it; the parameter must hold ŵ.

        Soft and sharded weights save all of w as `dense`, others the error where they are pruned.
        """
        self.bind_storage()
        self.mask.copy_(mask)
        if self.dense is None:
            return
        if "dense" in saved:
            self.dense.copy_(self.target.part(saved["dense"]))
        else:
            self.dense.copy_(self.pruned)
            self.dense[~self.mask.to(self.dense.device)] = -saved["error"].to(self.dense)


class OffloadedWeight(Weight):
    """A parameter that cannot point at w: w is copied into its storage before a step, and out of it afterwards.

    With `offload`, w is in CPU memory between the steps.
    """

    def __init__(self, target: Target, memory: Memory, *, offload: bool = False) -> None:
        self._offload, self._inside = offload, False
        super().__init__(target, memory)

    def dense_template(self) -> Tensor:
        """Return ŵ on the device and in the memory format for w."""
        return self.pruned.cpu() if self._offload else self.pruned

    @property
    def source(self) -> Tensor:
        """The weights that are trained, in the parameter's storage or outside it."""
        return self.pruned if self._inside else super().source

    @property
    def error(self) -> Tensor:
        """The paper's e = ŵ − w; while the parameter holds w, ŵ is known to be zero where it is pruned."""
        return torch.where(self.mask, 0, -self.source) if self._inside else super().error

    def swap_in_dense(self) -> None:
        """Copy w into the parameter's storage."""
        if self.dense is not None:
            self.pruned.copy_(self.dense)
            self._inside = True

    def compute_pruned(self) -> None:
        """Copy w out of the parameter's storage and compute ŵ = m⊙w there; safe to repeat after an interruption."""
        if self.dense is not None and self._inside:
            self.dense.copy_(self.pruned)
            self._inside = False
        elif self.dense is not None:
            self.pruned.copy_(self.dense)
        _, mask, pruned = self._views
        apply_mask(pruned, mask, pruned)

    def reset_storage(self) -> None:
        """Treat what the parameter holds as ŵ: it always points at its own storage."""
        self._inside = False

    def drop_dense(self) -> None:
        """Free the dense weights; pruned weights are lost."""
        self._inside = False
        super().drop_dense()


class ShardedWeight(OffloadedWeight):
    """This process's rows of a parameter whose storage FSDP manages.

    Masks and dense weights are saved as shards, so that distributed checkpoints can reshard them for another number of
    processes.
    """

    def write_pruned(self) -> None:
        """Compute ŵ in the parameter's storage."""
        self.compute_pruned()

    def take_replaced_storage(self) -> None:
        """Do nothing: FSDP manages the storage."""

    @property
    def was_modified(self) -> bool:
        """Whether other code wrote to the parameter or replaced its storage since `record_version`."""
        return self.target.param._version != self._version or self.target.local.data_ptr() != self._addresses[0]

    def save(self) -> dict[str, Any]:
        """Return mask and w as tensors sharded like the parameter."""
        parameter = self.target.param
        kept = {} if self.dense is None else {"dense": sharded_like(parameter, self.source)}
        return {"masks": sharded_like(parameter, self.mask), "shapes": list(parameter.shape), **kept}

    def saved_mask(self, saved: Tensor) -> Tensor:
        """Return this process's rows of a saved mask."""
        return self.target.part(saved).to(torch.bool)


def make_weight(target: Target, memory: Memory, *, offload: bool) -> Weight:
    """Return the kind of weight that suits the parameter."""
    if is_sharded(target.param):
        return ShardedWeight(target, memory, offload=offload)
    return OffloadedWeight(target, memory, offload=True) if offload else Weight(target, memory)


class Weights(dict[str, Weight]):
    """All weights of a pruner; `holding_dense` while the parameters hold w, as they do during a step."""

    holding_dense = False

    def swap_in_dense(self) -> None:
        """Let the parameters hold w."""
        self.holding_dense = True  # first, so that ŵ is written again if this is interrupted
        for weight in self.values():
            weight.swap_in_dense()

    def write_pruned(self) -> None:
        """Let the parameters hold ŵ."""
        write_all([weight for weight in self.values() if weight.memory is not Memory.SOFT])
        # Bump the version counter, so that autograd rejects a backward pass through a graph made with other weights.
        increment_version([weight.target.param for weight in self.values()])
        for weight in self.values():
            weight.record_version()
        self.holding_dense = False

    def replace_masks(self, masks: Iterable[tuple[str, Tensor]], shards: ShardGroup) -> tuple[int, dict[str, int]]:
        """Write new masks; return how many elements changed, and for each weight a number that is 0 if none is kept.

        Both are over all processes. On an accelerator they are read in one copy.
        """
        if on_one_accelerator(weight.mask for weight in self.values()):
            return self._replace_together(dict(masks), shards)
        flips = 0
        for name, mask in masks:
            weight = self[name]
            flips += int(torch.count_nonzero(mask != weight.mask))
            weight.mask.copy_(mask)
            if weight.memory is Memory.SOFT:
                weight.write_pruned()
        kept = shards.counts(weight.mask for weight in self.values())
        return int(shards.sum(torch.tensor(flips, device="cpu"))), dict(zip(self, kept, strict=True))

    def _replace_together(self, masks: dict[str, Tensor], shards: ShardGroup) -> tuple[int, dict[str, int]]:
        present, new = [self[name].mask for name in masks], list(masks.values())
        # Two parts of about the same size, which need half the memory of one.
        changes = [count_changes(present[part::2], new[part::2]) for part in range(min(len(new), 2))]
        if new:
            torch._foreach_copy_(present, new)
        write_all([self[name] for name in masks if self[name].memory is Memory.SOFT])
        current = [weight.mask for weight in self.values()]
        stored = [mask for mask in current if mask.numel()]  # a process may have no rows
        largest = iter(torch._foreach_max(stored) if stored else ())
        kept = [next(largest) if mask.numel() else mask.new_zeros(()) for mask in current]
        numbers = shards.sum(torch.stack([*changes, *kept]).to(torch.int64)).tolist()
        return sum(numbers[: len(changes)]), dict(zip(self, numbers[len(changes) :], strict=True))

    def reset_storage(self) -> None:
        """Let the parameters keep their current values, in the storage of ŵ."""
        for weight in self.values():
            weight.reset_storage()
        self.holding_dense = False

    def drop_dense(self) -> None:
        """Free all dense weights."""
        for weight in self.values():
            weight.drop_dense()

    def accept_external_writes(self, step: int) -> None:
        """Take over what other code has written since the last step."""
        if self.holding_dense:
            return
        modified = {name: weight for name, weight in self.items() if weight.was_modified}
        turns = -(-len(self) // _LAYERS)
        round_, turn = divmod(step, turns)
        compared = list(self.items())[turn::turns]
        unseen = [name for name, weight in compared if name not in modified and not weight.sample_matches(round_)]
        if unseen:
            warn(
                f"{unseen[0]} was written through .data, which autograd does not notice. All weights are taken as "
                "they are now, but a write to a few elements can be missed: write under torch.no_grad() instead."
            )
        for name, weight in (self if unseen else modified).items():
            if weight.accept_external_write() and not unseen:
                warn(
                    f"{name} was given new weights since the last step, some where it is pruned. They become its "
                    "dense weights and are pruned after this step. Attach the pruner after loading weights, and a new "
                    "pruner to an optimizer that replaces the old one."
                )


def write_all(weights: list[Weight]) -> None:
    """Compute ŵ of all weights and let their parameters hold it."""
    write_together([weight for weight in weights if weight.joins_foreach])
    for weight in reversed(weights):  # the weights that the optimizer updated last are still in the cache
        if not weight.joins_foreach:
            weight.write_pruned()


def write_together(weights: list[Weight]) -> None:
    """Compute ŵ of many weights and let their parameters hold it, in two launches per device and dtype."""
    groups: dict[tuple[Any, ...], list[Weight]] = {}
    for weight in weights:
        weight.take_replaced_storage()
        groups.setdefault((weight.pruned.device, weight.pruned.dtype, weight.dense is None), []).append(weight)
    for (_, _, in_place), group in groups.items():
        sources, masks, pruned = map(list, zip(*(weight.bits for weight in group), strict=True))
        if in_place:
            torch._foreach_mul_(pruned, masks)
        else:
            # Zeros and ones in place of ŵ, then bits times these: no temporary, and one dtype per operation, without
            # which foreach operations launch one kernel per tensor.
            torch._foreach_copy_(pruned, masks)
            torch._foreach_mul_(pruned, sources)
    for weight in weights:
        weight.target.param.data = weight.pruned


def count_changes(before: list[Tensor], after: list[Tensor]) -> Tensor:
    """Return how many elements of masks differ, on their device, in a few launches."""
    changed = torch.empty(sum(map(Tensor.numel, before)), dtype=torch.uint8, device=before[0].device)
    parts = changed.split([mask.numel() for mask in before])
    parts = [part.view(mask.shape) for part, mask in zip(parts, before, strict=True)]
    torch._foreach_copy_(parts, before)
    torch._foreach_sub_(parts, [mask.view(torch.uint8) for mask in after])
    return changed.clamp_(max=1).sum()  # differences of bytes are 0, 1 or 255


def apply_mask(source: Any, mask: Any, result: Any) -> None:
    """Write `source` where `mask` is True, +0.0 elsewhere; all three are views of bits."""
    if isinstance(result, np.ndarray):
        # Bits times 0 or 1: exact for every float, and the only masking that runs at memory speed.
        np.multiply(source, mask, out=result)
    else:
        torch.mul(source, mask, out=result)
