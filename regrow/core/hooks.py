"""Optimizer hooks: which steps count, closures, which pruner has which weights, and weight decay at ŵ."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal
from weakref import WeakSet, WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.optimizer import register_optimizer_step_pre_hook

from regrow.checks import warn
from regrow.core.distributed import ShardGroup, local_part
from regrow.core.targets import Target

WeightDecayAt = Literal["dense", "pruned"]

_COUPLED = (SGD, Adam, Adagrad, RMSprop, Adamax, NAdam, RAdam, Adadelta, ASGD)


class StepHooks:
    """Registers step hooks with an optimizer and calls back once per step, even if one step calls another.

    The argument of `before` is whether the step has a closure, that of `after` whether the step counts. `around` is
    called instead of a closure and must call it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        shards: ShardGroup,
        before: Callable[[bool], None],
        after: Callable[[bool], None],
        around: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self.initializing = False
        """Whether distributed checkpoint makes this step, only to initialize the optimizer's state."""
        self.running = False
        """Whether the optimizer is inside a step."""
        self._shards, self._before, self._after, self._around = shards, before, after, around
        self._hooks = (optimizer.register_step_pre_hook(self._begin), optimizer.register_step_post_hook(self._end))

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self.running and _is_nested(optimizer):
            return None
        self.running, self.initializing = True, _initializes_state(optimizer, self._shards)
        given = (*args[1:], *kwargs.values())  # args[0] is the optimizer itself
        self._before(any(map(callable, given)))
        return (args[0], *map(self._wrap, args[1:])), {name: self._wrap(value) for name, value in kwargs.items()}

    def _wrap(self, argument: Any) -> Any:
        return (lambda: self._around(argument)) if callable(argument) else argument

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _is_nested(optimizer):
            return
        self.running = False
        self._after(not self.initializing and not overflowed(optimizer))


class Owners:
    """Registry of the pruner of each parameter: at most one, over all optimizers.

    The first step of another optimizer on a pruner's weights warns; torch's global optimizer hook detects it. Each
    optimizer is checked once, and again after another pruner is attached.
    """

    def __init__(self) -> None:
        self._pruners: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._known: WeakSet[Optimizer] = WeakSet()
        self._registered = False

    def check(self, targets: Iterable[Target], optimizer: Optimizer) -> None:
        """Raise unless the optimizer steps every target and no other pruner owns one."""
        stepped = set(map(id, _parameters(optimizer)))
        for target in targets:
            if hasattr(target.param, "_in_backward_optimizers"):
                raise ValueError(f"{target.name} is stepped inside backward, where there are no step hooks")
            if id(target.param) not in stepped:
                raise ValueError(
                    f"the optimizer does not hold {target.name}: pass it to the optimizer, or leave it out "
                    "with targets=... All targets need one optimizer (not one per parameter inside backward)"
                )
            if id(target.param) in self._pruners:
                gc.collect()  # a pruner and its optimizer are a reference cycle, which may be unused but not yet freed
            if (owner := self._pruners.get(id(target.param))) is not None:
                raise ValueError(
                    f"{target.name} is already pruned by a {type(owner).__name__}: detach() that one first"
                )

    def add(self, pruner: Any, targets: Iterable[Target]) -> None:
        """Make `pruner` the owner of its targets, and check all optimizers again."""
        self._pruners.update({id(target.param): pruner for target in targets})
        self._known.clear()
        if not self._registered:
            register_optimizer_step_pre_hook(self._before_step)
            self._registered = True

    def remove(self, pruner: Any, targets: Iterable[Target]) -> None:
        """Release the targets of `pruner`."""
        for target in targets:
            if self._pruners.get(id(target.param)) is pruner:
                del self._pruners[id(target.param)]

    def of(self, parameters: Iterable[Tensor]) -> list[Any]:
        """Return the pruners of these parameters, each once."""
        found = (self._pruners.get(id(parameter)) for parameter in parameters)
        return list({id(pruner): pruner for pruner in found if pruner is not None}.values())

    def on(self, optimizer: Optimizer) -> list[Any]:
        """Return the pruners that are attached to `optimizer`."""
        return [pruner for pruner in self.of(_parameters(optimizer)) if pruner.optimizer is optimizer]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer in self._known:
            return
        self._known.add(optimizer)
        for pruner in self.of(_parameters(optimizer)):
            if pruner.optimizer is not optimizer and not pruner._hooks.running:
                kind = type(pruner).__name__
                warn(
                    f"a {type(optimizer).__name__} steps weights that a {kind} prunes with another optimizer: they "
                    f"do not stay pruned. detach() the {kind} and attach a new one to the optimizer that trains."
                )
                return


class MissingState:
    """Warns at the first step if an optimizer's state was loaded, but not the state of its pruner."""

    def __init__(self, pruner: Any) -> None:
        self._pruner = ref(pruner)
        self._missing = False
        self._hook = pruner.optimizer.register_load_state_dict_post_hook(self._loaded)

    def _loaded(self, optimizer: Optimizer) -> None:
        pruner = self._pruner()
        self._missing = pruner is not None and bool(optimizer.state) and pruner.step == 0

    def warn(self) -> None:
        """Warn if it is missing, once."""
        if self._missing:
            self._missing = False
            name = type(self._pruner()).__name__
            warn(
                f"the optimizer's state was loaded, but not that of the {name}: it starts at step 0 with new masks. "
                "Save pruner.state_dict() with the others, and load it with pruner.load_state_dict(...) after them. "
                f"To prune from a dense checkpoint, attach the {name} after loading it."
            )

    def loaded(self) -> None:
        """Record that the pruner's state was loaded as well."""
        self._missing = False

    def remove(self) -> None:
        """Remove the hook from the optimizer."""
        self._hook.remove()


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _is_nested(optimizer: Optimizer) -> bool:
    """Return whether a step runs inside a step: a subclass whose step calls its parent's runs the hooks of both.

    torch does not report this to hooks, so the calls of `step` on the stack are counted.
    """
    frame, steps = sys._getframe(1), 0
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        running = frame.f_code.co_qualname == "Optimizer.profile_hook_step.<locals>.wrapper"
        steps += running and frame.f_locals.get("self") is optimizer
    return steps > 1


def _initializes_state(optimizer: Optimizer, shards: ShardGroup) -> bool:
    """Return whether distributed checkpoint makes this step to create the optimizer's state: lr 0, zero gradients."""
    if optimizer.state:
        return False
    rates = [group.get("lr") for group in optimizer.param_groups]
    if any(rate is None or float(rate) != 0 for rate in rates):
        return False
    gradients = [parameter.grad for parameter in _parameters(optimizer) if parameter.grad is not None]
    if any(gradient.is_sparse for gradient in gradients):
        return False
    return not any(shards.counts(local_part(gradient) for gradient in gradients))


def overflowed(optimizer: Optimizer) -> bool:
    """Return whether the step leaves the weights unchanged: GradScaler runs fused steps despite an overflow."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def gradient_scale(optimizer: Optimizer) -> float:
    """Return the factor by which the gradients are too large, if a fused step is to unscale them itself; else 1."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def base_optimizer(optimizer: Any) -> Optimizer:
    """Return the torch optimizer inside wrappers such as Accelerate's, which do not forward hooks."""
    if isinstance(optimizer, nn.Module):
        raise TypeError(f"model and optimizer are swapped: got the module {type(optimizer).__name__} as optimizer")
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise TypeError(
            f"{type(optimizer).__name__} is not a torch.optim.Optimizer and has no step hooks: "
            "pass the torch optimizer that it steps"
        )
    return optimizer


class DecayAtPruned:
    """Adds λŵ to the gradients in place of the λw that the optimizer would add itself.

    This treats the regularizer as part of the loss, whose gradient the paper takes at ŵ. It is only possible where
    weight decay is part of the gradient (coupled).
    """

    def __init__(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if not isinstance(optimizer, _COUPLED) or group.get("decoupled_weight_decay"):
                raise ValueError(
                    f"weight_decay_at='pruned' needs weight decay that is part of the gradient; "
                    f"{type(optimizer).__name__} decouples it or has none. Use SGD or Adam, or weight_decay_at='dense'"
                )
        self._optimizer = optimizer
        self._strengths: list[float] | None = None

    @torch.no_grad()
    def add_to_gradients(self) -> None:
        """Add λŵ to the gradients and switch the optimizer's own weight decay off."""
        if gradient_scale(self._optimizer) != 1:
            raise RuntimeError(
                "weight_decay_at='pruned' needs unscaled gradients: call scaler.unscale_(optimizer) before the step"
            )
        groups = self._optimizer.param_groups
        strengths = self._strengths or [group["weight_decay"] for group in groups]
        for group, strength in zip(groups, strengths, strict=True):
            group["weight_decay"] = 0
            sign = -1 if group.get("maximize") else 1
            for parameter in group["params"]:
                if parameter.grad is not None and strength:
                    parameter.grad.add_(parameter, alpha=sign * strength)
        self._strengths = strengths

    def restore(self) -> None:
        """Switch the optimizer's own weight decay on again."""
        for group, strength in zip(self._optimizer.param_groups, self._strengths or [], strict=False):
            group["weight_decay"] = strength
        self._strengths = None


def make_decay(
    weight_decay_at: str, optimizer: Optimizer, others: Iterable[DecayAtPruned | None]
) -> DecayAtPruned | None:
    """Return the weight decay at ŵ, if requested; `others` are those of the optimizer's other pruners."""
    if weight_decay_at not in ("dense", "pruned"):
        raise ValueError(
            f"weight_decay_at must be 'dense' (weight decay acts on w) or 'pruned' (on ŵ), got {weight_decay_at!r}"
        )
    decay = DecayAtPruned(optimizer) if weight_decay_at == "pruned" else None
    if any(decay or other for other in others):
        raise ValueError("weight_decay_at='pruned' changes a whole optimizer: give it one pruner for all weights")
    return decay
