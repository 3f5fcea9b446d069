"""Keeps a model pruned while an optimizer trains it, with the optimizer's step hooks (Algorithm 1)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NoReturn, Self
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import warn
from regrow.core.budget import Budget, Parts, Scope
from regrow.core.distributed import RankConsistency, shard_group
from regrow.core.hooks import MissingState, Owners, StepHooks, WeightDecayAt, base_optimizer, make_decay
from regrow.core.modules import unwrap
from regrow.core.options import MethodInfo, check_keywords, full_signature
from regrow.core.schedule import (
    Level,
    PerPattern,
    Schedule,
    Sparsity,
    as_schedule,
    check_sparsity,
    mask_period,
    shortfall,
)
from regrow.core.state import Masks, Stats, checked_masks, load_weights, pruning_error, save_weights, stable_name
from regrow.core.targets import (
    Names,
    Target,
    TargetSpec,
    check_not_replaced,
    find_targets,
    group_targets,
    spared_layer,
    zero_outside,
)
from regrow.core.units import Criterion, parse_unit
from regrow.core.weights import Memory, Weight, Weights, make_weight


class Pruner:
    """Base class of all pruning methods. A subclass sets `memory` and implements `next_masks`.

    `scope` and `floor` decide how many weights each layer keeps; `unit`, `criterion` and `channels` decide what is
    pruned as one. `weight_decay_at` is whether weight decay acts on the dense or on the pruned weights. See
    `regrow.core.options.PrunerOptions`.
    """

    memory: ClassVar[Memory] = Memory.FORGET
    period: ClassVar[int] = 16
    """Optimizer steps between mask updates in the method's paper; `every="auto"` scales it."""
    scales_period: ClassVar[bool] = True
    """Whether `every="auto"` makes the period shorter in a short training."""
    criterion: Criterion = "l2"
    total_steps: int | None = None
    """Optimizer steps of the whole training, if known."""
    info: ClassVar[MethodInfo]
    takes_sparsity: ClassVar[bool] = True
    """Whether the user chooses the sparsity."""
    takes_schedule: ClassVar[bool] = True
    """Whether `sparsity` may be a schedule: a number in a recipe then becomes its ramp."""
    ends_dense: ClassVar[bool] = False
    """Whether no weight is pruned at the end of training."""
    prunes_filters: ClassVar[bool] = False
    """Whether the method always prunes whole filters."""
    takes_masks: ClassVar[bool] = False
    """Whether the user passes the masks."""
    has_mask: ClassVar[bool] = True
    """Whether fine-tuning can keep the method's mask."""
    every_divides_epoch: ClassVar[bool] = False
    """Whether the model is sparse only right after a mask update, so that one is needed at the end of each epoch."""
    has_own_schedule: ClassVar[bool] = False
    """Whether the method decides itself when it reaches `sparsity`, as fractions of `total_steps`."""
    ignores_options: ClassVar[bool] = False
    """Whether the method ignores options that it does not have, so that any recipe can train it as a baseline."""
    resume_options: ClassVar[tuple[str, ...]] = ("every", "unit", "criterion", "channels", "weight_decay_at")
    """Options that must be the same when a run is resumed."""
    _owners: ClassVar[Owners] = Owners()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Write out the options that a method passes on, for help() and `regrow methods`."""
        super().__init_subclass__(**kwargs)
        cls.__signature__ = full_signature(cls)  # type: ignore[attr-defined]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse unknown options with an error that names the method and the nearest option."""
        check_keywords(cls, kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Sparsity,
        every: int | Literal["auto"] = "auto",
        scope: Scope = "global",
        unit: str = "weight",
        criterion: Criterion | None = None,
        channels: bool = False,
        targets: TargetSpec = None,
        exclude: Names = (),
        include_last: bool = False,
        floor: int = 0,
        weight_decay_at: WeightDecayAt = "dense",
        offload: bool = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.unit, self.channels, self.weight_decay_at, self._offload = unit, channels, weight_decay_at, offload
        self.criterion = self.criterion if criterion is None else criterion
        self.optimizer = base_optimizer(optimizer)
        others = self._owners.on(self.optimizer)
        self._decay = make_decay(weight_decay_at, self.optimizer, [other._decay for other in others])
        self.budget, self.units = Budget(scope, floor), parse_unit(unit, self.criterion, channels=channels)
        if criterion is not None and unit != "filter":
            raise ValueError(f"criterion={criterion!r} ranks filters: it needs unit='filter', not unit={unit!r}")
        self.schedule: Schedule | PerPattern = as_schedule(sparsity)
        for schedule in self.schedules.values():
            self.units.check(schedule)
        self.auto_every = every == "auto"  # if so, the period of a saved run replaces it
        if every == "auto" and not self.scales_period:
            every = self.period
        self.every = mask_period(every, self.period, self.schedules.values(), self.total_steps)
        found = find_targets(model, targets, include_last=include_last, exclude=exclude)
        self._model = ref(unwrap(model))
        self.spared = spared_layer(model) if targets is None and not include_last else None
        found = self.units.usable(model, found, chosen=targets is not None)
        self.targets = {target.name: target for target in found}
        self.groups = group_targets(self.targets, self.schedules)
        self._all_targets = [*found, *self.units.tied_parameters(model, found)]
        self._owners.check(self._all_targets, self.optimizer)
        self.shards = shard_group(((target.name, target.param) for target in self._all_targets), model)
        self.step = self.flips = self.updates = 0
        self._consistency = RankConsistency(process_group, self.shards)
        self._consistency.check_settings(self._shared_settings)  # before ranks compute masks together
        self._weights = Weights({target.name: self.make_weight(target) for target in self._all_targets})
        self._frozen = self._detached = self._inside_dense = False
        self._collapsed: set[str] = set()
        self.levels = dict.fromkeys(self.groups, 0.0)
        with self.dense():
            if self.updates_at(0):
                self._update_masks()
        self._hooks = StepHooks(self.optimizer, self.shards, self._before_step, self._after_step, self._evaluate)
        self._missing_state = MissingState(self)
        self._owners.add(self, self._all_targets)

    # A step of the optimizer

    def _before_step(self, has_closure: bool) -> None:
        """The gradient at ŵ is known: let the optimizer apply it to w (Algorithm 1, line 7)."""
        if self._inside_dense:
            raise RuntimeError(
                "optimizer.step() inside `with pruner.dense():` would train the dense model: leave the block first"
            )
        if not self._hooks.initializing:
            self._missing_state.warn()
        self.restore()
        weights = self._weights.values()
        masks, sources = (weight.mask for weight in weights), (weight.source for weight in weights)
        self._consistency.check_start(self._shared_settings, masks, sources)
        if not has_closure:
            self.before_update()
        self._weights.swap_in_dense()

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Evaluate a closure's loss and gradients at ŵ (line 6), although the optimizer that calls it updates w."""
        self._write_pruned()
        loss = closure()
        self.before_update()
        self._weights.swap_in_dense()
        return loss

    def _after_step(self, counts: bool) -> None:
        """Update the mask if it is time, and write ŵ = m⊙w into the model (lines 2 to 5)."""
        try:
            self.step += counts
            if counts and not self._frozen and self.updates_at(self.step):
                self._update_masks()
                self._consistency.check_masks((weight.mask for weight in self._weights.values()), step=self.step)
        finally:
            self._write_pruned()

    def _update_masks(self) -> None:
        if self.memory is Memory.FORGET:
            self._write_pruned()  # momentum has moved pruned weights: they count as zero and grow back from zero
        for weight in self._weights.values():
            weight.take_replaced_storage()  # the masks are made from the weights of this step
        self.flips, kept = self._weights.replace_masks(self._all_masks(self.step), self.shards)
        self.updates += 1
        self._warn_of_collapse(kept)

    def _all_masks(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the next masks of the targets and of their tied parameters."""
        for name, mask in self.next_masks(t):
            yield from self.units.all_masks(self.targets[name], mask)

    def _warn_of_collapse(self, kept: Mapping[str, int]) -> None:
        if new := [name for name in self.targets if not kept[name] and name not in self._collapsed]:
            self._collapsed.update(new)
            warn(
                f"all of {', '.join(new)} is pruned at step {self.step}. Nothing is protected by default; floor=1 "
                "keeps one unit of every layer, scope='layer' prunes the same fraction of every layer."
            )

    def _write_pruned(self) -> None:
        self._weights.write_pruned()
        self.after_update()

    # What a method defines

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) pairs for step `t`; `weights` holds the trained weights."""
        raise TypeError(f"{type(self).__name__} does not define how it prunes: implement next_masks(self, t)")

    def updates_at(self, t: int) -> bool:
        """Return whether the masks are updated after step `t`."""
        return t % self.every == 0

    def make_weight(self, target: Target) -> Weight:
        """Return the object that stores ŵ in the parameter and w in a second tensor."""
        return make_weight(target, self.memory, offload=self._offload)

    def extra_state(self) -> dict[str, Any]:
        """Return what this method saves in addition, as plain tensors and numbers."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `extra_state` returned."""

    def before_update(self) -> None:
        """Run when the gradients at ŵ are known and the parameters still hold ŵ."""
        if self._decay is not None:
            self._decay.add_to_gradients()

    def after_update(self) -> None:
        """Run when the parameters hold ŵ again."""
        if self._decay is not None:
            self._decay.restore()

    # What a method can use

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights that are trained: with `Memory.KEEP` the dense ones."""
        return {name: self._weights[name].source for name in self.targets}

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The schedule of each pattern in `sparsity`; "*" stands for one that holds for all targets."""
        return self.schedule.schedules if isinstance(self.schedule, PerPattern) else {"*": self.schedule}

    def by_group(self, sparsity: Level) -> dict[str, float]:
        """Return the sparsity of each group in `groups`; a number holds for all."""
        levels = dict(sparsity) if isinstance(sparsity, Mapping) else dict.fromkeys(self.groups, sparsity)
        for level in levels.values():
            check_sparsity(level, f"the schedule's value at step {self.step}")
        return levels

    def parts(self, sparsity: Level) -> Parts:
        """Return the names of the targets in each group, and the fraction of their units to prune."""
        levels = self.by_group(sparsity)
        return [(names, self.units.unit_sparsity(levels[pattern])) for pattern, names in self.groups.items()]

    def keep_top(
        self, scores: Mapping[str, Tensor], sparsity: Level, *, among: Masks | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield masks that keep the units with the largest scores, according to unit, scope and floor.

        `sparsity` is that of all targets or, as `schedule(t)` returns it, of each group of them. Units outside the
        masks `among` are kept only if too few are inside.
        """
        parts = self.parts(sparsity)
        targets = {name: self.targets[name] for name in scores}
        units = {name: self.units.scores(target, scores[name]) for name, target in targets.items()}
        unpruned = None
        if among is not None:
            unpruned = {name: self.units.unpruned(target, among[name]) for name, target in targets.items()}
        shapes = {name: target.param.shape for name, target in targets.items()}
        for name, keep in self.budget.keep_top(units, parts, shapes, self.shards, unpruned):
            inside = among[name] if among is not None else None
            self.levels = self.by_group(sparsity)  # only once the selection has succeeded
            yield name, self.units.mask(self.targets[name], scores[name], keep, inside)

    @classmethod
    def is_periodic(cls) -> bool:
        """Return whether the method has a period, the option `every`."""
        return "every" in inspect.signature(cls).parameters

    def shortfall(self, steps: int, until: int | None = None) -> str:
        """Return why the final sparsity is not reached in `steps` optimizer steps; empty if it is, or is unknown."""
        last = next((t for t in range(steps if until is None else until, -1, -1) if self.updates_at(t)), 0)
        return shortfall(self.schedules, last=last, steps=steps, every=self.every)

    def warn_if_idle(self, total_steps: int) -> None:
        """Warn if a method with a period makes no mask update in a training of `total_steps` optimizer steps."""
        if not self.is_periodic() or any(self.updates_at(t) for t in range(1, total_steps + 1)):
            return
        warn(
            f"{type(self).__name__} makes no mask update in this training (steps: {total_steps:,}, "
            f"every={self.every}): the masks of step 0 ({self.requested:.1%} sparsity) stay to the end. "
            "Choose a smaller every."
        )

    # What a user sees

    @property
    def masks(self) -> Masks:
        """The current masks; later steps update them in place (`.clone()` makes a copy).

        With sharded weights these are the rows of this process. `sparsity` and `stats()` always count over all
        processes, so all processes must call them.
        """
        return Masks({name: weight.mask for name, weight in self._weights.items()})

    def full_masks(self) -> Masks:
        """Return the masks with the rows of all processes, if weights are sharded; otherwise `masks`."""
        if not self.shards.sharded:
            return self.masks
        rows = {name: self.shards.all_rows(mask.to(torch.uint8)) for name, mask in self.masks.items()}
        return Masks({name: mask.to(torch.bool) for name, mask in rows.items()})

    @property
    def requested(self) -> float:
        """Target sparsity of the last mask update; with several groups, of all their weights together."""
        if len(self.groups) == 1:
            return next(iter(self.levels.values()))
        sizes = {
            pattern: sum(self.targets[name].param.numel() for name in names) for pattern, names in self.groups.items()
        }
        return sum(self.levels[pattern] * size for pattern, size in sizes.items()) / sum(sizes.values())

    @property
    def sparsity(self) -> float:
        """Fraction of the targeted weights that are pruned now, counted if other code has written to them."""
        self._check_model()
        kept, sizes = self._counts()
        return 1 - sum(kept) / sum(sizes)

    def stats(self) -> Stats:
        """Return reached and requested sparsity, also per layer, δ_t, flips and collapsed layers.

        On an accelerator this waits for the device, as logging does: call it every few steps, not at every one.
        """
        self._check_model()
        if not self._detached:
            self._weights.accept_external_writes(self.step)
        kept, sizes = self._counts()
        layers = {name: 1 - left / size for name, left, size in zip(self._weights, kept, sizes, strict=True)}
        return Stats(
            step=self.step,
            requested=self.requested,
            sparsity=1 - sum(kept) / sum(sizes),
            delta=pruning_error(self._weights.values(), self.shards),
            flips=self.flips,
            layers=layers,
            collapsed=tuple(name for name in self.targets if layers[name] == 1),
        )

    def _counts(self) -> tuple[list[int], list[int]]:
        kept = [self._kept(weight) for weight in self._weights.values()]
        return self.shards.counts(kept), self.shards.sizes(kept)

    def _kept(self, weight: Weight) -> Tensor:
        """Return where the model has weights: in the mask, and wherever others have written some."""
        written = self._detached or (not self._weights.holding_dense and weight.was_modified)
        if written:
            return weight.mask | (weight.target.local != 0)
        return weight.kept if self.memory is Memory.SOFT else weight.mask

    def _check_model(self) -> None:
        """Raise if the model holds other parameters than those that are pruned."""
        model = self._model()
        if model is not None and not self.shards.sharded:  # FSDP replaces the parameters of a module for a while
            check_not_replaced(model, self._all_targets, type(self).__name__)

    @contextmanager
    def dense(self) -> Iterator[None]:
        """Let the model hold the dense weights inside a `with` block, for example to evaluate them."""
        if self._weights.holding_dense:
            yield
            return
        self.restore()
        self._weights.swap_in_dense()
        self.shards.drop_gathered()
        self._inside_dense = True
        try:
            yield
        finally:
            self._inside_dense = False
            self._write_pruned()
            self.shards.drop_gathered()

    def restore(self) -> None:
        """Let the model hold ŵ again after an exception inside `optimizer.step()`, which leaves it with w.

        The next step does so as well, but a forward pass before it would use the dense weights.
        """
        if self._weights.holding_dense:
            self._write_pruned()
        else:
            self._weights.accept_external_writes(self.step)

    def freeze(self) -> None:
        """Fix the masks from now on and drop the dense weights, for fine-tuning."""
        self.restore()
        self._weights.drop_dense()
        self._frozen = True
        if self.memory is Memory.SOFT:
            self._write_pruned()  # until now the model also had weights that had grown outside the mask

    def detach(self, *, dense: bool = False) -> None:
        """Remove the hooks from the optimizer; the model stays pruned, or with `dense` holds the dense weights."""
        held = []
        if dense and not self._detached:
            with self.dense():
                held = [(target, target.local.detach().clone()) for target in self._all_targets]
        soft = self.memory is Memory.SOFT  # weights that have grown outside the mask are removed, too
        if soft:
            self._weights.drop_dense()
        if soft or self._weights.holding_dense:
            self._write_pruned()
        self._hooks.remove()
        self._missing_state.remove()
        self._detached = True
        self._owners.remove(self, self._all_targets)
        with torch.no_grad():
            for target, values in held:
                target.local.copy_(values)

    def apply_to(self, other: nn.Module) -> None:
        """Apply the masks to another copy of the model, for example an average that is no longer sparse."""
        zero_outside(self.masks, other)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs besides the states of model and optimizer, as plain tensors and numbers."""
        self._weights.accept_external_writes(self.step)
        return {
            **self.settings(),
            "step": self.step,
            "flips": self.flips,
            "updates": self.updates,
            "requested": self.requested,
            "levels": self.levels,
            "frozen": self._frozen,
            "extra": self.extra_state(),
            **save_weights(self._weights),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state_dict()`: attach the pruner, then load the states of model, optimizer and pruner."""
        mine = self.settings()
        if self.auto_every and "every" in state:
            mine["every"] = state["every"]  # resume with the period of the saved run
        masks = checked_masks(state, mine, self._weights)
        self.every = mine.get("every", self.every)
        self._weights.reset_storage()  # after an interrupted step, or inside dense(), the model may hold w
        if state["frozen"]:
            self._weights.drop_dense()
        elif self._frozen:
            self._weights = Weights({target.name: self.make_weight(target) for target in self._all_targets})
        self._frozen = state["frozen"]
        load_weights(state, masks, self._weights)
        self.step, self.flips = state["step"], state["flips"]
        self.levels = self.by_group(state.get("levels", state["requested"]))
        self.updates = state["updates"]
        self._missing_state.loaded()
        self._consistency.restart()
        self.load_extra_state(state["extra"])

    def settings(self) -> dict[str, Any]:
        """Return what must be the same when a run is resumed."""
        return {**self._settings_with(self.resume_options), "schedule": stable_name(self.schedule)}

    def _shared_settings(self) -> dict[str, Any]:
        """Return what must be the same on all ranks; a method may set some of its options later."""
        return {
            **self._settings_with(name for name in self.resume_options if hasattr(self, name)),
            "sparsity": stable_name(self.schedule),
            "step": self.step,
            **{f"target {target.name}": tuple(target.param.shape) for target in self._all_targets},
        }

    def _settings_with(self, names: Iterable[str]) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in names}
        return {"method": type(self).__name__, **own, "scope": self.budget.scope, "floor": self.budget.floor}

    def __repr__(self) -> str:
        # The reached sparsity is counted over all processes: a print in one of them must not wait for the others.
        target = f"target sparsity {self.requested:.1%}, {len(self.targets)} tensors"
        dense = f", {self.spared!r} stays dense" if self.spared else ""
        period = f", every={self.every}" if self.is_periodic() else ""
        return f"<{type(self).__name__} at step {self.step}: {target}{dense}{period}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to its optimizer and cannot be copied: use state_dict()")


def warn_if_unfinished(model: object) -> None:
    """Warn if a pruner of the model has not reached the final sparsity of its schedule."""
    if not isinstance(model, nn.Module):
        return  # the export raises its own error
    for pruner in Pruner._owners.of(model.parameters()):
        if pruner.ends_dense:
            continue
        for pattern, schedule in pruner.schedules.items():
            level, final = pruner.levels[pattern], getattr(schedule, "final", None)
            if final is not None and level < final:
                of = f" for {pattern!r}" if len(pruner.groups) > 1 else ""
                warn(
                    f"the model has not reached its final sparsity: {type(pruner).__name__} is at step {pruner.step} "
                    f"with a target of {level:.1%}{of}, and its schedule ends at {final:.1%}"
                )
                break


# `__new__` would hide the options of the base class from help().
Pruner.__signature__ = full_signature(Pruner)  # type: ignore[attr-defined]
