"""Soft threshold: the model holds ŵ = m⊙sign(w)·max(|w| − τ, 0) instead of m⊙w.

τ is the largest pruned magnitude at the time of the mask update. With scope="global", it is that of all layers or, if
`sparsity` has patterns, of the pattern's layers; with every other scope, of the layer. Kept weights are therefore
non-zero, except those that tie with τ: these are kept in the mask and zero in the model.

m and τ are constant between mask updates. A kept weight whose magnitude falls to τ or below is zero until the next
update. A pruned weight that rises above τ stays zero until then. So the model never has more non-zero weights than the
mask. `sparsity` and `stats()` count the mask.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from regrow.core.bits import in_memory_order, largest_magnitude
from regrow.core.distributed import ShardGroup, is_sharded
from regrow.core.targets import Target
from regrow.core.weights import Memory, OffloadedWeight, ShardedWeight, Weight, Weights


class SoftWeight(Weight):
    """A target whose kept weights are shrunk by τ in the model; the dense weights are not.

    A frozen pruner has no dense weights: ŵ itself is trained, and τ is not subtracted again.
    """

    tau = 0.0

    def shrunk(self, w: Tensor) -> Tensor:
        """Return sign(w)·max(|w| − τ, 0), to the bit; NaN stays NaN."""
        return w - w.clamp(-self.tau, self.tau)

    def compute_pruned(self) -> None:
        """Compute ŵ."""
        super().compute_pruned()
        if self.dense is not None:
            self.pruned.copy_(self.shrunk(self.pruned))

    @property
    def kept(self) -> Tensor:
        """Where ŵ is not zero."""
        return self.mask & (self.pruned != 0)

    @property
    def error(self) -> Tensor:
        """The paper's e = ŵ − w, which includes the τ that kept weights lose."""
        w = self.source.to(self.pruned.device)
        return torch.where(self.mask, self.shrunk(w), 0) - w if self.dense is not None else super().error

    def sample_matches(self, step: int) -> bool:
        """Return whether a few elements still equal what `compute_pruned` made of w."""
        if self.dense is None or self.pruned.device.type != "cpu":
            return True
        few = self.sample(step)
        w, mask, pruned = (in_memory_order(tensor)[few] for tensor in (self.source, self.mask, self.pruned))
        expected = torch.where(mask, self.shrunk(w), 0)
        return bool(((expected == pruned) | expected.isnan()).all())

    def accept_external_write(self) -> bool:
        """Take over weights written by other code; return whether they are non-zero outside the mask.

        If they are, they become w. Otherwise they are taken as ŵ: w becomes sign(ŵ)·(|ŵ| + τ) where they differ from
        the current ŵ, so that the model holds what was written, and stays the same elsewhere.
        """
        if self.dense is None:
            return super().accept_external_write()
        self.bind_storage()
        if outside := bool(torch.count_nonzero(self.pruned[~self.mask])):
            self.dense.copy_(self.pruned)
        else:
            self._follow()
        return outside

    def _follow(self) -> None:
        """Set w to the nearest dense weights whose ŵ is what the parameter holds, up to rounding."""
        assert self.dense is not None
        pruned, w = self.pruned, self.dense.to(self.pruned.device)
        written = self.mask & (pruned != self.shrunk(w))
        behind = torch.where(pruned == 0, w.clamp(-self.tau, self.tau), pruned + pruned.sign() * self.tau)
        self.dense.copy_(torch.where(written, behind, w))

    def save(self) -> dict[str, Any]:
        """Return the mask, τ and all of w, which cannot be recovered exactly from ŵ and τ."""
        saved = super().save()
        if self.dense is None:
            return saved
        saved.pop("error", None)
        return {"dense": self.source.detach().clone().cpu(), **saved, "tau": self.tau}

    def load(self, mask: Tensor, saved: Mapping[str, Any]) -> None:
        """Restore a mask and what `save` returned with it; the parameter must hold ŵ."""
        super().load(mask, saved)
        if self.dense is not None:
            self.tau = saved["tau"]
            self._follow()  # changes nothing if the model's state is of the same step


class SoftOffloadedWeight(SoftWeight, OffloadedWeight):
    """A soft-thresholded target whose dense weights are offloaded to the CPU."""


class SoftShardedWeight(SoftWeight, ShardedWeight):
    """This process's rows of a soft-thresholded target."""


def make_soft_weight(target: Target, memory: Memory, *, offload: bool) -> SoftWeight:
    """Return the soft-thresholded counterpart of `regrow.core.weights.make_weight`."""
    if is_sharded(target.param):
        return SoftShardedWeight(target, memory, offload=offload)
    return SoftOffloadedWeight(target, memory, offload=True) if offload else SoftWeight(target, memory)


def set_thresholds(
    weights: Weights, masks: Mapping[str, Tensor], shards: ShardGroup, groups: Iterable[Collection[str]]
) -> None:
    """Set the τ of each group of layers to the largest magnitude that `masks` prune in it."""
    largest = [largest_magnitude(weights[name].source.masked_fill(mask, 0)) for name, mask in masks.items()]
    of_layers = shards.all_rows(torch.tensor([largest], dtype=torch.float64, device="cpu")).amax(0)
    found = dict(zip(masks, of_layers.tolist(), strict=True))
    for names in groups:
        for name in names:
            weight = weights[name]
            assert isinstance(weight, SoftWeight)
            weight.tau = max(found[each] for each in names)
