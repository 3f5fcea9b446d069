"""A pruner whose choices go by names: what every method of this package, and one of your own, starts from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import warn
from regrow.choices.budget import Allotment, Scope
from regrow.choices.carried import weight_of
from regrow.choices.decay import Decay, DecayAtPruned, at_pruned
from regrow.choices.score import Criterion
from regrow.choices.soft import soft_weight_of
from regrow.choices.units import parse_unit
from regrow.core.masks import Masks
from regrow.core.pruner import BasePruner
from regrow.core.schedule import Schedule, as_schedule, check_sparsity
from regrow.core.weights import Weight
from regrow.host.optimizers import hookable
from regrow.host.targets import Target, TargetSpec, find_targets
from regrow.methods.options import ExplicitSignature


class Pruner(BasePruner):
    """The life that all methods share; a method says what it remembers and what the next masks are.

    `scope` and `floor` say how many survive where, `unit`, `criterion` and `channels` what is pruned as one, `decay`
    whether weight decay acts on the dense or on the pruned weights (see `regrow.methods.options.Options`).
    """

    shared = (*BasePruner.shared, "unit", "criterion", "channels", "decay")
    criterion: Criterion = "l2"
    _soft = False
    """Whether what is kept is shrunk by the threshold (see `regrow.choices.soft`)."""
    __signature__: ClassVar[Any] = ExplicitSignature()

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float | Schedule,
        every: int | Literal["auto"] = 16,
        scope: Scope = "global",
        unit: str = "weight",
        criterion: Criterion | None = None,
        channels: bool = False,
        targets: TargetSpec = None,
        include_last: bool = False,
        floor: int = 0,
        decay: Decay = "dense",
        offload: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.unit, self.channels, self.decay, self._offload = unit, channels, decay, offload
        self.criterion = self.criterion if criterion is None else criterion
        optimizer = hookable(optimizer)
        self._decay = DecayAtPruned(optimizer) if at_pruned(decay) else None
        others = [other for other in self._holders.values() if other.optimizer is optimizer]
        if any(self._decay or getattr(other, "_decay", None) for other in others):
            raise ValueError("decay='pruned' concerns a whole optimizer: give it one pruner for all its weights")
        self.budget, self.units = Allotment(scope, floor), parse_unit(unit, self.criterion, channels=channels)
        if criterion is not None and unit != "filter":
            raise ValueError(f"criterion={criterion!r} ranks filters: it goes with unit='filter', not unit={unit!r}")
        schedule = as_schedule(sparsity)
        self.units.check(schedule)
        found = find_targets(model, targets, include_last=include_last)
        found = self.units.usable(model, found, chosen=targets is not None)
        companions = self.units.companions(model, found)
        super().__init__(
            model, optimizer, targets=found, companions=companions, sparsity=schedule, every=every, group=group
        )

    def keep_top(
        self, scores: Mapping[str, Tensor], sparsity: float, *, among: Masks | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield masks that keep the units of largest score, as unit, scope and floor say; nothing outside `among`."""
        check_sparsity(sparsity, f"the schedule's value at step {self.step}")
        targets = {name: self.targets[name] for name in scores}
        units = {name: self.units.scores(target, scores[name]) for name, target in targets.items()}
        whole = None
        if among is not None:
            whole = {name: self.units.whole(target, among[name]) for name, target in targets.items()}
        shapes = {name: target.param.shape for name, target in targets.items()}
        for name, keep in self.budget.keep_top(units, self.units.share(sparsity), shapes, self.shards, whole):
            inside = among[name] if among is not None else None
            self.requested = sparsity  # not before it is known that there are masks
            yield name, self.units.mask(self.targets[name], scores[name], keep, inside)

    def warn_if_idle(self, total: int) -> None:
        """Warn if a method with a period has no mask update due in a training of `total` optimizer steps."""
        if "every" not in inspect.signature(type(self)).parameters or any(self.due(t) for t in range(1, total + 1)):
            return
        name = type(self).__name__
        warn(
            f"no mask update of {name} falls due in this training (steps: {total:,}, every={self.every}): "
            f"the masks of step 0 ({self.requested:.1%} sparsity) stay to the end. Choose a smaller every."
        )

    def all_masks(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the next masks, and those of what goes with their units."""
        for name, mask in self.next_masks(t):
            yield from self.units.spread(self.targets[name], mask)

    def hold(self, target: Target) -> Weight:
        """Return what keeps ŵ in the parameter and w behind it."""
        make = soft_weight_of if self._soft else weight_of
        return make(target, self.memory, offload=self._offload)

    def whole_masks(self) -> Masks:
        """Return the masks of sharded weights, the rows of all processes put together; otherwise `masks`."""
        if not self.shards.spread:
            return self.masks
        rows = {name: self.shards.rows(mask.to(torch.uint8)) for name, mask in self.masks.items()}
        return Masks({name: mask.to(torch.bool) for name, mask in rows.items()})

    def before_update(self) -> None:
        """Run when the gradients at ŵ are known and the parameters still hold ŵ."""
        if self._decay is not None:
            self._decay.add_to_gradients()

    def after_update(self) -> None:
        """Run when the parameters hold ŵ again."""
        if self._decay is not None:
            self._decay.restore()

    def settings(self) -> dict[str, Any]:
        """Return what a saved run and the one that continues it must have in common."""
        return {**super().settings(), "scope": self.budget.scope, "floor": self.budget.floor}
