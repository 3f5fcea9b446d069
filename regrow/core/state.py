"""What a resumed run needs of a pruner, as plain tensors and numbers, and the checks before it is taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regrow.core.masks import pack, unpack
from regrow.core.weights import Memory, Weight


def save_weights(weights: Mapping[str, Weight]) -> dict[str, Any]:
    """Return the masks in bits and the error e = ŵ − w where it is not zero."""
    return {
        "masks": {name: pack(weight.mask) for name, weight in weights.items()},
        "shapes": {name: list(weight.mask.shape) for name, weight in weights.items()},
        "error": {name: w.error[~w.mask].cpu() for name, w in weights.items() if w.dense is not None},
    }


def checked_masks(
    state: Mapping[str, Any], settings: Mapping[str, Any], weights: Mapping[str, Weight]
) -> dict[str, Tensor]:
    """Return the saved masks, after everything that could be wrong with a state has been ruled out."""
    for key, mine in settings.items():
        if state.get(key) != mine:
            raise ValueError(f"the state was saved with {key}={state.get(key)!r}, this pruner has {key}={mine!r}")
    shapes = {name: list(weight.mask.shape) for name, weight in weights.items()}
    for name in {**shapes, **state["shapes"]}:
        if shapes.get(name) != state["shapes"].get(name):
            raise ValueError(
                f"{name} has shape {shapes.get(name, 'none, it is not a target here')}, "
                f"in the saved state {state['shapes'].get(name, 'none, it is not a target there')}"
            )
    masks = {name: unpack(state["masks"][name], torch.Size(shape), name) for name, shape in shapes.items()}
    for name, mask in masks.items():
        pruned = mask.numel() - int(torch.count_nonzero(mask))
        if name in state["error"] and state["error"][name].numel() != pruned:
            saved = state["error"][name].numel()
            raise ValueError(f"the saved error of {name} has {saved} values, its mask prunes {pruned}")
        weight, mask = weights[name], mask.to(weights[name].mask.device)
        if weight.memory is Memory.FORGET and not weight.touched and bool(torch.any(mask & ~weight.mask)):
            raise ValueError(
                f"{name} was pruned when the pruner was attached, and not with the saved masks: load the model's state "
                "after attaching the pruner and before loading the pruner's"
            )
        if weight.memory is not Memory.SOFT and torch.count_nonzero(weight.target.param.data[~mask]):
            raise ValueError(
                f"{name} has weights where the saved mask has none: load the model's state of the same moment "
                "before the pruner's"
            )
    return masks


def load_weights(state: Mapping[str, Any], masks: Mapping[str, Tensor], weights: Mapping[str, Weight]) -> None:
    """Put masks and error in place; the model holds ŵ."""
    for name, weight in weights.items():
        weight.mask.copy_(masks[name])
        if weight.dense is not None:
            weight.dense.copy_(weight.pruned)
            weight.dense[~weight.mask] = -state["error"][name].to(weight.dense)
        weight.bind()
