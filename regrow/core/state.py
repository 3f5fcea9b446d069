"""What a resumed run needs of a pruner, as plain tensors and numbers, and the checks before it is taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regrow.core.masks import pack, unpack
from regrow.core.weights import Memory, Weight
from regrow.host.shards import is_sharded, sharded_like


def save_weights(weights: Mapping[str, Weight]) -> dict[str, Any]:
    """Return the masks in bits and the error e = ŵ − w where it is not zero.

    Of sharded weights, return masks and w as tensors sharded alike, which distributed checkpoints can cut anew.
    """
    shapes = {name: list(weight.target.param.shape) for name, weight in weights.items()}
    kept = {name: weight for name, weight in weights.items() if weight.dense is not None}
    if any(is_sharded(weight.target.param) for weight in weights.values()):
        return {
            "masks": {name: sharded_like(weight.target.param, weight.mask) for name, weight in weights.items()},
            "shapes": shapes,
            "dense": {name: sharded_like(weight.target.param, weight.source) for name, weight in kept.items()},
        }
    return {
        "masks": {name: pack(weight.mask) for name, weight in weights.items()},
        "shapes": shapes,
        "error": {name: weight.error[~weight.mask].cpu() for name, weight in kept.items()},
    }


def checked_masks(
    state: Mapping[str, Any], settings: Mapping[str, Any], weights: Mapping[str, Weight]
) -> dict[str, Tensor]:
    """Return the saved masks, after everything that could be wrong with a state has been ruled out."""
    for key, mine in settings.items():
        if state.get(key) != mine:
            raise ValueError(f"the state was saved with {key}={state.get(key)!r}, this pruner has {key}={mine!r}")
    shapes = {name: list(weight.target.param.shape) for name, weight in weights.items()}
    for name in {**shapes, **state["shapes"]}:
        if shapes.get(name) != state["shapes"].get(name):
            raise ValueError(
                f"{name} has shape {shapes.get(name, 'none, it is not a target here')}, "
                f"in the saved state {state['shapes'].get(name, 'none, it is not a target there')}"
            )
    masks = {name: _mask(state["masks"][name], weight, name) for name, weight in weights.items()}
    for name, mask in masks.items():
        pruned = mask.numel() - int(torch.count_nonzero(mask))
        if name in state.get("error", ()) and state["error"][name].numel() != pruned:
            saved = state["error"][name].numel()
            raise ValueError(f"the saved error of {name} has {saved} values, its mask prunes {pruned}")
        weight, mask = weights[name], mask.to(weights[name].mask.device)
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
    return masks


def load_weights(state: Mapping[str, Any], masks: Mapping[str, Tensor], weights: Mapping[str, Weight]) -> None:
    """Put masks and error in place; the model holds ŵ."""
    for name, weight in weights.items():
        weight.mask.copy_(masks[name])
        if weight.dense is not None and "dense" in state:
            weight.dense.copy_(weight.target.part(state["dense"][name]))
        elif weight.dense is not None:
            weight.dense.copy_(weight.pruned)
            weight.dense[~weight.mask.to(weight.dense.device)] = -state["error"][name].to(weight.dense)
        weight.bind()


def _mask(saved: Tensor, weight: Weight, name: str) -> Tensor:
    if is_sharded(saved) != is_sharded(weight.target.param):
        here, there = ("sharded" if is_sharded(t) else "whole" for t in (weight.target.param, saved))
        raise ValueError(f"{name} is {here} here and {there} in the saved state: continue as the run was started")
    if is_sharded(saved):
        return weight.target.part(saved).to(torch.bool)
    return unpack(saved, weight.mask.shape, name)
