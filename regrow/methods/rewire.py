"""What drop-and-grow methods share: a random sparse start, and a number of connections that never changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal, TypedDict

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.choices.budget import Scope, keep_largest
from regrow.choices.random import uniform
from regrow.core.schedule import Schedule
from regrow.host.shards import held
from regrow.host.targets import TargetSpec
from regrow.methods.options import EPOCH, check_constant, needed, needed_period
from regrow.methods.pruner import Pruner

# What torch's optimizers gather from past gradients, by the names in their state.
_MOMENTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf")


class RewireOptions(TypedDict, total=False):
    """What every drop-and-grow method takes besides its own options."""

    seed: int
    scope: Scope
    targets: TargetSpec
    include_last: bool
    group: dist.ProcessGroup | None


class Rewire(Pruner, ABC):
    """Starts from random masks and moves connections every `every` steps until `until` of the `total` steps.

    A method says in `rewire` which connections it drops and where as many grow. New ones start from weight zero;
    `fresh_momentum` tells whether the optimizer forgets what it has gathered for them (momentum, Adam's moments).
    """

    scope: ClassVar[Scope] = "layer"
    include_last: ClassVar[bool] = False
    until: ClassVar[float] = 1.0
    fresh_momentum: ClassVar[bool] = False
    period = EPOCH
    shared = (*Pruner.shared, "total", "seed")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        every: int | Literal["auto"] | None,
        total: int | None,
        seed: int = 0,
        scope: Scope | None = None,
        targets: TargetSpec = None,
        include_last: bool | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.total = needed(self, total, "total", "the optimizer steps of the whole training: epochs * len(loader)")
        self.total_steps, self.seed = self.total, seed
        super().__init__(
            model,
            optimizer,
            sparsity=self.ramp(sparsity),
            every=needed_period(self, every),
            scope=scope or self.scope,
            targets=targets,
            include_last=self.include_last if include_last is None else include_last,
            group=group,
        )
        self.warn_if_idle(self.total)

    @abstractmethod
    def rewire(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) pairs with as many connections as there are now."""

    def ramp(self, sparsity: float) -> float | Schedule:
        """Return the sparsity over time, which is constant unless a method has a ramp of its own."""
        return check_constant(self, sparsity)

    def due(self, t: int) -> bool:
        """Return whether connections move at step `t`; at the end of training they do not."""
        return t == 0 or (t % self.every == 0 and t < self.until * self.total)

    def next_masks(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Draw the first masks, then rewire them."""
        if t == 0:
            yield from self.keep_top({name: self.draw(name, 0) for name in self.targets}, self.schedule(0))
            return
        for name, mask in list(self.rewire(t)):  # all before the first is used: NaN in a layer changes none
            if self.fresh_momentum:
                self._forget_momentum(name, mask & ~self.masks[name])
            yield name, mask

    def draw(self, name: str, t: int, purpose: str = "place") -> Tensor:
        """Return a random number in (0, 1) for every weight of `name`, the same on every rank and in every rerun."""
        offset = self.targets[name].offset
        return uniform(self.weights[name], seed=self.seed, layer=f"{name} {purpose}", step=t, offset=offset)

    def keep_largest(self, name: str, score: Tensor, among: Tensor, count: int) -> Tensor:
        """Return a mask of the `count` elements of largest magnitude inside the mask `among`."""
        return keep_largest(name, score, among, count, self.shards)

    def count(self, mask: Tensor) -> int:
        """Return how many elements of a mask are True, over all shards."""
        return self.shards.counts([mask])[0]

    def copied_gradients(self) -> dict[str, Tensor]:
        """Return copies of the gradients, over which some optimizers write (Nesterov)."""
        known = {name: target.grad for name, target in self.targets.items()}
        return {name: gradient.clone() for name, gradient in known.items() if gradient is not None}

    def _forget_momentum(self, name: str, where: Tensor) -> None:
        state = self.optimizer.state.get(self.targets[name].param, {})
        for key in _MOMENTS:
            if isinstance(state.get(key), Tensor):
                held(state[key]).masked_fill_(where, 0)
