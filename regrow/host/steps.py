"""A guest of an optimizer's steps: called before and after each, told which ones count, and around its closures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from regrow.host.shards import Shards, held


class Steps:
    """Calls back around every step of an optimizer, once for a step inside a step.

    `before` is told whether the optimizer was given a closure, `after` whether the step counts; `around` is given a
    closure in place of its being called.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        shards: Shards,
        before: Callable[[bool], None],
        after: Callable[[bool], None],
        around: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self.pretended = False
        """Whether the present step is one that distributed checkpoint pretends to make."""
        self._running = False
        self._shards, self._before, self._after, self._around = shards, before, after, around
        self._hooks = (optimizer.register_step_pre_hook(self._begin), optimizer.register_step_post_hook(self._end))

    def remove(self) -> None:
        """Let go of the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self._running and _is_nested(optimizer):
            return None
        self._running, self.pretended = True, _is_pretence(optimizer, self._shards)
        given = (*args[1:], *kwargs.values())  # args[0] is the optimizer itself
        self._before(any(map(callable, given)))
        return (args[0], *map(self._wrap, args[1:])), {name: self._wrap(value) for name, value in kwargs.items()}

    def _wrap(self, argument: Any) -> Any:
        return (lambda: self._around(argument)) if callable(argument) else argument

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _is_nested(optimizer):
            return
        self._running = False
        self._after(not self.pretended and not overflowed(optimizer))


def _is_nested(optimizer: Optimizer) -> bool:
    """Tell a step inside a step: a subclass whose step calls its parent's runs the hooks of both."""
    frame, steps = sys._getframe(1), 0
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        running = frame.f_code.co_qualname == "Optimizer.profile_hook_step.<locals>.wrapper"
        steps += running and frame.f_locals.get("self") is optimizer
    return steps > 1


def _is_pretence(optimizer: Optimizer, shards: Shards) -> bool:
    """Tell the step with which distributed checkpoint makes a fresh optimizer's state: lr 0 and zero gradients."""
    if optimizer.state:
        return False
    rates = [group.get("lr") for group in optimizer.param_groups]
    if any(rate is None or float(rate) != 0 for rate in rates):
        return False
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if any(gradient.is_sparse for gradient in gradients):
        return False
    return not any(shards.counts(held(gradient) for gradient in gradients))


def overflowed(optimizer: Optimizer) -> bool:
    """Tell a step that leaves the weights alone: GradScaler calls fused kernels although a gradient overflowed."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
