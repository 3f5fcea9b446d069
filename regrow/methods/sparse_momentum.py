"""Sparse momentum (Dettmers & Zettlemoyer 2019): layers and weights of large momentum get what others lose.

Defaults are the authors': random masks of one density in every layer, the last linear one included, a share of 0.5 of
the connections that falls to 0.005 by half a cosine, once per epoch (`every=len(loader)`) but not after the last one.
Different from the authors' code: the number of connections is exact (theirs drifts by rounding), and what does not fit
into a layer is split over the others by their own contributions instead of evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_share
from regrow.choices.budget import allocate, row_sum
from regrow.host.shards import held
from regrow.methods.about import About
from regrow.methods.rewire import Rewire, RewireOptions


class SparseMomentum(Rewire):
    """Moves connections of `model` to where the momentum is largest; `total` is the length of training in steps."""

    about = About(
        paper="Dettmers & Zettlemoyer 2019",
        when="every `every` steps, not at the end",
        score="drop: magnitude; grow: momentum",
        cost="two selections and one mean per layer",
        budget="uniform at first, then by mean momentum",
    )
    include_last = True
    shared = (*Rewire.shared, "rate")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        every: int | Literal["auto"] | None = None,
        total: int | None = None,
        rate: float = 0.5,
        **options: Unpack[RewireOptions],
    ) -> None:
        self.rate = check_share("rate", rate)
        groups = getattr(optimizer, "param_groups", [{"momentum": 1}])  # what is no optimizer is refused below
        if not any(group.get("momentum") or group.get("betas", [0])[0] for group in groups):
            raise ValueError(
                f"SparseMomentum grows where momentum is largest, and this {type(optimizer).__name__} has none: "
                "use SGD with momentum=0.9, or Adam"
            )
        super().__init__(model, optimizer, sparsity=sparsity, every=every, total=total, **options)

    def rewire(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Drop the smallest of each layer, share the places by mean |momentum|, grow at the largest |momentum|."""
        masks = dict(self.masks)
        active = dict(zip(masks, self.shards.counts(masks.values()), strict=True))
        sums = [row_sum(self.momentum(name).abs() * mask, self.shards) for name, mask in masks.items()]
        means = [total / max(count, 1) for total, count in zip(sums, active.values(), strict=True)]
        least = min(0.005, self.rate)
        rate = least + (self.rate - least) * (1 + math.cos(math.pi * t / self.total)) / 2
        kept, free, moved = {}, [], 0
        for (name, mask), mean in zip(masks.items(), means, strict=True):
            size = self.targets[name].param.numel()
            pruned = 1 - active[name] / size
            dense_and_busy = pruned < 0.2 and mean * len(means) > sum(means)
            count = math.ceil((min(pruned, rate) if dense_and_busy else rate) * active[name])
            kept[name] = self.keep_largest(name, self.weights[name], mask, active[name] - count)
            free.append(size - active[name] + count)
            moved += count
        caps = [int(0.99 * places) for places in free]
        grown = allocate(moved, means, caps if sum(caps) >= moved else free)
        for (name, keep), count in zip(kept.items(), grown, strict=True):
            yield name, keep | self.keep_largest(name, self.momentum(name), ~keep, count)

    def momentum(self, name: str) -> Tensor:
        """Return the direction in which the optimizer is moving `name`, scaled as Adam does if it is Adam."""
        state = self.optimizer.state.get(self.targets[name].param, {})
        if isinstance(buffer := state.get("momentum_buffer"), Tensor):
            return held(buffer)
        if "exp_avg" in state and "exp_avg_sq" in state:
            scaled: Tensor = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
            return held(scaled)
        raise ValueError(f"the optimizer has gathered no momentum for {name}: is it trained at all?")
