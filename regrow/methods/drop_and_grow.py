"""Base class of drop-and-grow methods: a random sparse start, and a constant number of connections."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Literal, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_fraction
from regrow.core.bits import uniform
from regrow.core.budget import Scope, keep_largest
from regrow.core.distributed import local_part
from regrow.core.options import EPOCH, TargetOptions, check_constant, required_total
from regrow.core.pruner import Pruner
from regrow.core.schedule import Level, Sparsity
from regrow.core.select import NotANumberError
from regrow.core.targets import Names, TargetSpec

# Running averages in the state of torch's optimizers.
_MOMENTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf")


class DropAndGrowOptions(TargetOptions, total=False):
    """Options of every drop-and-grow method besides its own."""

    seed: int
    scope: Scope


class DropAndGrow(Pruner, ABC):
    """Starts from random masks and moves connections every `every` steps, up to a fraction `until` of `total_steps`.

    A subclass implements `drop_and_grow`, which drops connections and grows as many. New connections start with weight
    zero and, with `resets_momentum`, without momentum (also Adam's moments).
    """

    scope: ClassVar[Scope] = "layer"
    include_last: ClassVar[bool] = False
    until: ClassVar[float] = 1.0
    resets_momentum: ClassVar[bool] = False
    grows_by_gradient: ClassVar[bool] = False
    """Whether the gradients of a step are kept until connections have moved after it (see `move_by_gradient`)."""
    moves_between_layers: ClassVar[bool] = False
    """Whether connections move between all layers, so that the count of a group of layers changes."""
    takes_schedule = False
    period = EPOCH
    total_steps: int
    resume_options = (*Pruner.resume_options, "total_steps", "seed")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Level,
        every: int | Literal["auto"],
        total_steps: int | None,
        seed: int = 0,
        scope: Scope | None = None,
        targets: TargetSpec = None,
        exclude: Names = (),
        include_last: bool | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.total_steps, self.seed = required_total(self, total_steps), seed
        self._gradients: dict[str, Tensor] = {}
        if self.moves_between_layers and isinstance(sparsity, Mapping):
            name = type(self).__name__
            raise TypeError(
                f"{name} moves connections between all layers: sparsity must be one number, got {sparsity!r}"
            )
        super().__init__(
            model,
            optimizer,
            sparsity=self.ramp(sparsity),
            every=every,
            scope=scope or self.scope,
            targets=targets,
            exclude=exclude,
            include_last=self.include_last if include_last is None else include_last,
            process_group=process_group,
        )
        self.warn_if_idle(self.total_steps)

    @abstractmethod
    def drop_and_grow(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) pairs with the same number of connections as now."""

    def ramp(self, sparsity: Level) -> Sparsity:
        """Return the sparsity over time: constant, unless a method has its own ramp."""
        return check_constant(self, sparsity)

    def updates_at(self, t: int) -> bool:
        """Return whether connections move after step `t`; they do not at the end of training."""
        return t == 0 or (t % self.every == 0 and t < self.until * self.total_steps)

    @torch.no_grad()
    def before_update(self) -> None:
        """Keep the gradients of a step after which connections move, if they decide where."""
        super().before_update()
        if self.grows_by_gradient and self.updates_at(self.step + 1) and not self._frozen:
            self._gradients = self.copied_gradients()

    def next_masks(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Draw the first masks at random, then drop and grow."""
        if t == 0:
            yield from self.keep_top({name: self.draw(name, 0) for name in self.targets}, self.schedule(0))
            return
        # Not every rule orders the weights: the sign of NaN never changes (DeepR), no threshold passes it (DSR).
        broken = self.shards.counts(weight.isnan() for weight in self.weights.values())
        for name, count in zip(self.weights, broken, strict=True):
            if count:
                raise NotANumberError(name)
        for name, mask in list(self.drop_and_grow(t)):  # compute all first, so that NaN in one layer changes none
            if self.resets_momentum:
                self._reset_momentum(name, mask & ~self.masks[name])
            yield name, mask

    def draw(self, name: str, t: int, purpose: str = "place") -> Tensor:
        """Return a random number in (0, 1) for every weight of `name`, equal on every rank and in every rerun."""
        offset = self.targets[name].offset
        return uniform(self.weights[name], seed=self.seed, layer=f"{name} {purpose}", step=t, offset=offset)

    def keep_largest(self, name: str, score: Tensor, among: Tensor, count: int) -> Tensor:
        """Return a mask of the `count` elements of largest magnitude inside the mask `among`."""
        return keep_largest(name, score, among, count, self.shards)

    def move_by_gradient(self, name: str, mask: Tensor, *, active: int, moved: int) -> Tensor:
        """Drop the `moved` smallest of the `active` weights in `mask`, grow as many by |gradient|, maybe the same."""
        kept = self.keep_largest(name, self.weights[name], mask, active - moved)
        gradient = self._gradients.pop(name, None)
        score = torch.zeros_like(mask, dtype=torch.float32) if gradient is None else gradient
        return kept | self.keep_largest(name, score, ~kept, moved)

    def count(self, mask: Tensor) -> int:
        """Return the number of True elements of a mask, over all shards."""
        return self.shards.counts([mask])[0]

    def copied_gradients(self) -> dict[str, Tensor]:
        """Return copies of the gradients, because some optimizers overwrite them (Nesterov)."""
        known = {name: target.grad for name, target in self.targets.items()}
        return {name: gradient.clone() for name, gradient in known.items() if gradient is not None}

    def _reset_momentum(self, name: str, where: Tensor) -> None:
        state = self.optimizer.state.get(self.targets[name].param, {})
        for key in _MOMENTS:
            if isinstance(state.get(key), Tensor):
                local_part(state[key]).masked_fill_(where, 0)


class DropFractionOptions(DropAndGrowOptions, total=False):
    """Options of `DropFraction` that a subclass passes on unchanged."""

    every: int | Literal["auto"]
    total_steps: int | None
    drop_fraction: float | None


class DropFraction(DropAndGrow, ABC):
    """Moves the fraction `drop_fraction` of each layer's connections, or less as training goes on."""

    drop_fraction: float = 0.3
    resume_options = (*DropAndGrow.resume_options, "drop_fraction")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Level,
        every: int | Literal["auto"] = "auto",
        total_steps: int | None = None,
        drop_fraction: float | None = None,
        **options: Unpack[DropAndGrowOptions],
    ) -> None:
        fraction = self.drop_fraction if drop_fraction is None else drop_fraction
        self.drop_fraction = check_fraction("drop_fraction", fraction)
        super().__init__(model, optimizer, sparsity=sparsity, every=every, total_steps=total_steps, **options)


def annealed(fraction: float, t: int, total_steps: int) -> float:
    """Return the fraction that moves at step `t`, which decays from `fraction` to 0.005 with a cosine."""
    least = min(0.005, fraction)
    return least + (fraction - least) * (1 + math.cos(math.pi * t / total_steps)) / 2
