"""What a resumed run needs of a pruner, as plain tensors and numbers, and the checks before it is taken over."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from regrow.core.weights import Memory, Weight
from regrow.host.shards import is_sharded


def name_of(function: Callable[..., Any]) -> str:
    """Return by what a function, or an object that is called like one, is known again in another process.

    A function goes by its name, anything else by its `repr`, or its class if it has no `repr` of its own.

    >>> name_of(dict.get)
    'dict.get'
    """
    cls: Any = type(function)
    shown = cls.__qualname__ if cls.__repr__ is object.__repr__ else repr(function)
    name = getattr(function, "__qualname__", None) or shown
    return re.sub(r" at 0x[0-9a-fA-F]+", "", name)  # what a partial or a dataclass holds may show its address


def save_weights(weights: Mapping[str, Weight]) -> dict[str, dict[str, Any]]:
    """Return masks, shapes and errors, each by name."""
    saved = {name: weight.save() for name, weight in weights.items()}
    parts = dict.fromkeys(part for weight in saved.values() for part in weight)
    return {part: {name: weight[part] for name, weight in saved.items() if part in weight} for part in parts}


def load_weights(state: Mapping[str, Any], masks: Mapping[str, Tensor], weights: Mapping[str, Weight]) -> None:
    """Put masks and errors in place; the model holds ŵ."""
    for name, weight in weights.items():
        behind = {part: state[part][name] for part in ("error", "dense", "tau") if name in state.get(part, ())}
        weight.load(masks[name], behind)


def checked_masks(
    state: Mapping[str, Any], settings: Mapping[str, Any], weights: Mapping[str, Weight]
) -> dict[str, Tensor]:
    """Return the saved masks, after everything that could be wrong with a state has been ruled out."""
    if "method" not in state:
        raise ValueError(f"this is not the state of a pruner: it has no 'method', only {list(state)[:3]}")
    for key, mine in settings.items():
        saved = state.get(key, mine)  # a state from before there was such an option does not tell
        if _as_tuple(saved) != _as_tuple(mine):
            raise ValueError(f"the state was saved with {key}={saved!r}, this pruner has {key}={mine!r}")
    shapes = {name: list(weight.target.param.shape) for name, weight in weights.items()}
    for name in {**shapes, **state["shapes"]}:
        if shapes.get(name) != state["shapes"].get(name):
            raise ValueError(
                f"{name} has shape {shapes.get(name, 'none, it is not a target here')}, "
                f"in the saved state {state['shapes'].get(name, 'none, it is not a target there')}"
            )
    masks = {}
    for name, weight in weights.items():
        masks[name] = _mask(state["masks"][name], weight)
        _check_fit(masks[name], state.get("error", {}).get(name), weight)
    return masks


def _as_tuple(value: Any) -> Any:
    """A pair is the same pair after a format that knows lists only."""
    return tuple(value) if isinstance(value, list) else value


def _mask(saved: Tensor, weight: Weight) -> Tensor:
    name, parameter = weight.target.name, weight.target.param
    if is_sharded(saved) != is_sharded(parameter):
        here, there = ("sharded" if is_sharded(t) else "whole" for t in (parameter, saved))
        raise ValueError(f"{name} is {here} here and {there} in the saved state: continue as the run was started")
    return weight.saved_mask(saved)


def _check_fit(mask: Tensor, error: Tensor | None, weight: Weight) -> None:
    """Raise unless the saved error and the model's present weights are those of the saved mask."""
    name = weight.target.name
    pruned = mask.numel() - int(torch.count_nonzero(mask))
    if error is not None and error.numel() != pruned:
        raise ValueError(f"the saved error of {name} has {error.numel()} values, its mask prunes {pruned}")
    mask = mask.to(weight.mask.device)
    if weight.memory is Memory.FORGET and not weight.touched and bool(torch.any(mask & ~weight.mask)):
        raise ValueError(
            f"{name} was pruned when the pruner was attached, and not with the saved masks: load the model's state "
            "after attaching the pruner and before loading the pruner's"
        )
    if weight.memory is not Memory.SOFT and torch.count_nonzero(weight.target.held[~mask]):
        raise ValueError(
            f"{name} has weights where the saved mask has none: load the model's state of the same moment "
            "before the pruner's"
        )
