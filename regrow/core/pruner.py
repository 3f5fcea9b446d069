"""Keeps a model pruned while an optimizer trains it, through the optimizer's own step hooks (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NoReturn
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_steps, warn
from regrow.core.masks import Masks
from regrow.core.schedule import Schedule, as_schedule, scaled_period
from regrow.core.state import checked_masks, load_weights, name_of, save_weights
from regrow.core.stats import Stats, quality
from regrow.core.weights import Memory, Weight, Weights
from regrow.host.agreement import Agreement
from regrow.host.optimizers import check_free, hookable
from regrow.host.shards import shards_of
from regrow.host.steps import Steps
from regrow.host.targets import Target, zero_outside


class BasePruner:
    """The life that all methods share; a method says what it remembers and what the next masks are.

    `targets` are what masks are made for, `companions` are masked along with them. What can be chosen besides, how
    many survive where and what is pruned as one, has names in `regrow.Pruner`.
    """

    memory: ClassVar[Memory] = Memory.FORGET
    period: ClassVar[int] = 16
    """Optimizer steps between mask updates as the method's authors chose them; `every="auto"` scales it."""
    total_steps: int | None = None
    """Optimizer steps of the whole training, where the method was told."""
    shared: ClassVar[tuple[str, ...]] = ("every",)
    """The options that a saved run and the one that continues it must have in common."""
    _holders: ClassVar[WeakValueDictionary[int, BasePruner]] = WeakValueDictionary()
    """Who prunes which parameter (by identity), through whatever optimizer."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float | Schedule,
        every: int | Literal["auto"] = 16,
        targets: Sequence[Target],
        companions: Sequence[Target] = (),
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not targets:
            raise ValueError("a pruner needs at least one target, got none")
        self.schedule = as_schedule(sparsity)
        self._auto_every, self.every = every == "auto", self._period(every)
        self.optimizer = hookable(optimizer)
        self.targets, self.held = {target.name: target for target in targets}, [*targets, *companions]
        check_free(self.held, self.optimizer, self._holders)
        self.shards = shards_of(((each.name, each.param) for each in self.held), model)
        self._agreement = Agreement(group, needed=not self.shards.spread)
        self._weights = Weights({target.name: self.hold(target) for target in self.held})
        self._frozen = False
        self._collapsed: set[str] = set()
        self.step = self.flips = self.updates = 0
        self.requested = 0.0
        with self.dense():
            if self.due(0):
                self._refresh()
        self._steps = Steps(self.optimizer, self.shards, self._before_step, self._after_step, self._evaluate)
        self._holders.update({id(target.param): self for target in self.held})

    def _period(self, every: int | Literal["auto"]) -> int:
        """Return the steps between mask updates; "auto" scales the method's own period to the training's length."""
        if every == "auto":
            ramp_end = getattr(self.schedule, "end", None)
            return scaled_period(self.period, ramp_end=ramp_end, total_steps=self.total_steps)
        check_steps("every", every)
        return every

    # What a method decides

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) pairs for step `t`; called with the trained weights in place (see `weights`)."""
        raise TypeError(f"{type(self).__name__} does not say how it prunes: define next_masks(self, t)")

    def due(self, t: int) -> bool:
        """Return whether the masks are made anew at step `t`."""
        return t % self.every == 0

    def all_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) pairs for all that is held, companions of the targets included."""
        return self.next_masks(t)

    def hold(self, target: Target) -> Weight:
        """Return what keeps ŵ in the parameter and w behind it."""
        return Weight(target, self.memory)

    def extra_state(self) -> dict[str, Any]:
        """Return what this method alone must save, as plain tensors and numbers."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `extra_state` returned."""

    def before_update(self) -> None:
        """Run when the gradients at ŵ are known and the parameters still hold ŵ."""

    def after_update(self) -> None:
        """Run when the parameters hold ŵ again."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights that are trained: dense for methods that keep what they pruned."""
        return {name: self._weights[name].source for name in self.targets}

    # What a user sees

    @property
    def masks(self) -> Masks:
        """The present masks; later steps update them in place (`.clone()` keeps a copy).

        Of sharded weights these are the rows that lie in this process. What is counted (`sparsity`, `stats()`) is
        always counted over all processes, which therefore ask for it together.
        """
        return Masks({name: weight.mask for name, weight in self._weights.items()})

    @property
    def sparsity(self) -> float:
        """The share of targeted weights that is pruned now."""
        kept, sizes = self._counts()
        return 1 - sum(kept) / sum(sizes)

    def stats(self) -> Stats:
        """Return reached and requested sparsity, per layer too, δ_t, flips and collapsed layers."""
        self._weights.adopt(self.step)
        kept, sizes = self._counts()
        layers = {name: 1 - left / size for name, left, size in zip(self._weights, kept, sizes, strict=True)}
        return Stats(
            step=self.step,
            requested=self.requested,
            sparsity=1 - sum(kept) / sum(sizes),
            delta=quality(self._weights.values(), self.shards),
            flips=self.flips,
            layers=layers,
            collapsed=tuple(name for name in self.targets if layers[name] == 1),
        )

    def _counts(self) -> tuple[list[int], list[int]]:
        soft = self.memory is Memory.SOFT
        left = [weight.left for weight in self._weights.values()] if soft else list(self.masks.values())
        return self.shards.counts(left), self.shards.sizes(left)

    @contextmanager
    def dense(self) -> Iterator[None]:
        """Let the model hold the dense weights for a while, for example to evaluate them."""
        if self._weights.shown:
            yield
            return
        self.restore()
        self._weights.show()
        self.shards.drop_gathered()
        try:
            yield
        finally:
            self._hide()
            self.shards.drop_gathered()

    def restore(self) -> None:
        """Let the model hold ŵ again after an exception inside `optimizer.step()`, which leaves it with w.

        The next step does so as well, but a forward pass in between would see the dense weights.
        """
        if self._weights.shown:
            self._hide()
        else:
            self._weights.adopt(self.step)

    def freeze(self) -> None:
        """Fix the masks from now on and drop what was pruned: the fine-tuning phase."""
        self.restore()
        self._weights.forget()
        self._frozen = True
        if self.memory is Memory.SOFT:
            self._hide()  # until now the model held weights that had grown where the mask has none

    def detach(self) -> None:
        """Let go of the optimizer; the model stays as it is, pruned."""
        grown = self.memory is Memory.SOFT  # weights where the mask has none: they go as well
        if grown:
            self._weights.forget()
        if grown or self._weights.shown:
            self._hide()
        self._steps.remove()
        for target in self.held:
            if self._holders.get(id(target.param)) is self:
                del self._holders[id(target.param)]

    def apply_to(self, other: nn.Module) -> None:
        """Mask the same weights in another copy of the model, for example an average that is no longer sparse."""
        zero_outside(self.masks, other)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs besides the states of model and optimizer, as plain tensors and numbers."""
        self._weights.adopt(self.step)
        return {
            **self.settings(),
            "step": self.step,
            "flips": self.flips,
            "updates": self.updates,
            "requested": self.requested,
            "frozen": self._frozen,
            "extra": self.extra_state(),
            **save_weights(self._weights),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken: attach, then load the states of model, optimizer and pruner."""
        mine = self.settings()
        if self._auto_every and "every" in state:
            mine["every"] = state["every"]  # the saved run's period, whatever this one would have chosen
        masks = checked_masks(state, mine, self._weights)
        self.every = mine.get("every", self.every)
        self._weights.point_back()  # an interrupted step, or dense(), may have left the model elsewhere
        if state["frozen"]:
            self._weights.forget()
        elif self._frozen:
            self._weights = Weights({target.name: self.hold(target) for target in self.held})
        self._frozen = state["frozen"]
        load_weights(state, masks, self._weights)
        self.step, self.flips, self.requested = state["step"], state["flips"], state["requested"]
        self.updates = state.get("updates", 0)  # not counted by states of older versions
        self.load_extra_state(state["extra"])

    # How it works

    def _before_step(self, has_closure: bool) -> None:
        """The gradient at ŵ is known: let the optimizer apply it to w (Algorithm 1, line 7)."""
        self.restore()
        weights = self._weights.values()
        self._agreement.check_start((weight.mask for weight in weights), (weight.source for weight in weights))
        if not has_closure:
            self.before_update()
        self._weights.show()

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Evaluate a closure's loss and gradients at ŵ (line 6), although the optimizer that calls it works on w."""
        self._hide()
        loss = closure()
        self.before_update()
        self._weights.show()
        return loss

    def _after_step(self, counts: bool) -> None:
        """Make the mask anew if p divides t, and leave ŵ = m⊙w in the model (lines 2 to 5)."""
        try:
            self.step += counts
            if counts and not self._frozen and self.due(self.step):
                self._refresh()
                self._agreement.check_masks((weight.mask for weight in self._weights.values()), step=self.step)
        finally:
            self._hide()

    def _refresh(self) -> None:
        if self.memory is Memory.FORGET:
            self._hide()  # momentum has moved what is pruned: it counts as zero and grows back from zero
        flips = 0
        for name, mask in self.all_masks(self.step):
            weight = self._weights[name]
            flips += int(torch.count_nonzero(mask != weight.mask))
            weight.mask.copy_(mask)
            if weight.memory is Memory.SOFT:
                weight.prune()
        self.flips = int(self.shards.sum(torch.tensor(flips, device="cpu")))
        self.updates += 1
        self._warn_of_collapse()

    def _warn_of_collapse(self) -> None:
        kept = self.shards.counts(self._weights[name].mask for name in self.targets)
        for name, left in zip(self.targets, kept, strict=True):
            if not left and name not in self._collapsed:
                self._collapsed.add(name)
                warn(
                    f"all of {name} is pruned at step {self.step}. Nothing is protected by default; floor=1 keeps one "
                    "unit of every layer, scope='layer' prunes all layers alike."
                )

    def _hide(self) -> None:
        self._weights.hide()
        self.after_update()

    def settings(self) -> dict[str, Any]:
        """Return what a saved run and the one that continues it must have in common."""
        return {
            "method": type(self).__name__,
            "schedule": name_of(self.schedule),
            **{name: getattr(self, name) for name in self.shared},
        }

    def __repr__(self) -> str:
        # What is reached is counted over all processes, which a print in one of them must not wait for.
        asked = f"{self.requested:.1%} sparsity asked of {len(self.targets)} weights"
        return f"<{type(self).__name__} at step {self.step}: {asked}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to its optimizer and cannot be copied: use state_dict()")
