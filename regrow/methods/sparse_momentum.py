"""Sparse momentum (Dettmers & Zettlemoyer 2019): weights move to layers and places of large momentum.

Defaults are the authors': random first masks with the same density in all layers, including the last linear one. Once
per epoch (pass `every=len(loader)`; by default 391 steps), except after the last one, a fraction of the connections
moves; it decays from 0.5 to 0.005 with a cosine. Short trainings keep this period: moving half of the connections every
few steps empties whole layers. Different from the authors' code: the number of connections is exact (theirs drifts by
rounding), and connections that do not fit into a full layer go to the others by momentum, not evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.budget import split_exactly, sum_by_rows
from regrow.core.distributed import local_part
from regrow.core.options import MethodInfo
from regrow.methods.drop_and_grow import DropFraction, DropFractionOptions, annealed


class SparseMomentum(DropFraction):
    """Moves connections of `model` to where the momentum is largest; `total_steps` is the length of training."""

    info = MethodInfo(
        paper="Dettmers & Zettlemoyer 2019",
        when="every `every` steps, not at the end",
        score="drop: magnitude; grow: momentum",
        cost="two selections and one mean per layer",
        budget="uniform at first, then by mean momentum",
    )
    scales_period = False
    include_last = True
    moves_between_layers = True
    drop_fraction = 0.5

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        **options: Unpack[DropFractionOptions],
    ) -> None:
        groups = getattr(optimizer, "param_groups", [{"momentum": 1}])  # other objects are rejected below
        if not any(group.get("momentum") or group.get("betas", [0])[0] for group in groups):
            raise ValueError(
                f"SparseMomentum grows where momentum is largest, and this {type(optimizer).__name__} has none: "
                "use SGD with momentum=0.9, or Adam"
            )
        super().__init__(model, optimizer, sparsity=sparsity, **options)

    def drop_and_grow(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Drop the smallest weights of each layer, split the free places by mean |momentum|, grow at the largest."""
        masks = dict(self.masks)
        active = dict(zip(masks, self.shards.counts(masks.values()), strict=True))
        sums = [sum_by_rows(self.momentum(name).abs() * mask, self.shards) for name, mask in masks.items()]
        means = [total / max(count, 1) for total, count in zip(sums, active.values(), strict=True)]
        fraction = annealed(self.drop_fraction, t, self.total_steps)
        kept, free, moved = {}, [], 0
        for (name, mask), mean in zip(masks.items(), means, strict=True):
            size = self.targets[name].param.numel()
            pruned = 1 - active[name] / size
            dense_and_busy = pruned < 0.2 and mean * len(means) > sum(means)
            count = math.ceil((min(pruned, fraction) if dense_and_busy else fraction) * active[name])
            kept[name] = self.keep_largest(name, self.weights[name], mask, active[name] - count)
            free.append(size - active[name] + count)
            moved += count
        caps = [int(0.99 * places) for places in free]
        grown = split_exactly(moved, means, caps if sum(caps) >= moved else free)
        for (name, keep), count in zip(kept.items(), grown, strict=True):
            yield name, keep | self.keep_largest(name, self.momentum(name), ~keep, count)

    def momentum(self, name: str) -> Tensor:
        """Return the direction in which the optimizer is moving `name`, scaled as Adam does if it is Adam."""
        state = self.optimizer.state.get(self.targets[name].param, {})
        if isinstance(buffer := state.get("momentum_buffer"), Tensor):
            return local_part(buffer)
        if "exp_avg" in state and "exp_avg_sq" in state:
            scaled: Tensor = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
            return local_part(scaled)
        raise ValueError(f"the optimizer has no momentum for {name}: does the loss depend on it?")
