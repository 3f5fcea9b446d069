"""Report and state of a pruner: `Masks`, `Stats`, and the checks of `load_state_dict`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regrow.core.distributed import ShardGroup, is_sharded
from regrow.core.weights import Memory, Weight


class Masks(Mapping[str, Tensor]):
    """A validated mapping from parameter names to boolean tensors, True where a weight is kept.

    >>> Masks({"fc.weight": torch.tensor([[True, False]])}).sparsity
    0.5
    """

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        for name, mask in masks.items():
            if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
                kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
                raise TypeError(f"the mask of {name} must be a boolean tensor (True = kept), got {kind}")
        self._masks = dict(masks)

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __repr__(self) -> str:
        return f"Masks({len(self)} tensors, {self.kept:,} of {self.total:,} kept)"

    @property
    def total(self) -> int:
        """Number of weights."""
        return sum(mask.numel() for mask in self.values())

    @property
    def kept(self) -> int:
        """Number of weights that are kept."""
        return sum(int(torch.count_nonzero(mask)) for mask in self.values())

    @property
    def sparsity(self) -> float:
        """Fraction of the weights that are pruned."""
        return 1 - self.kept / self.total if self.total else 0.0

    def clone(self) -> Masks:
        """Return a copy that later mask updates do not change."""
        return Masks({name: mask.clone() for name, mask in self.items()})


@dataclass(frozen=True)
class Stats:
    """A pruner's state in numbers."""

    step: int
    requested: float
    """The schedule's sparsity at the last mask update, in units (weights or filters)."""
    sparsity: float
    """Fraction of the targeted weights that are zero."""
    delta: float
    """The quality of the pruning δ_t = ‖w − ŵ‖² / ‖w‖² (Eq. 2)."""
    flips: int
    """Mask elements that changed at the last mask update."""
    layers: Mapping[str, float]
    """The sparsity of each target."""
    collapsed: tuple[str, ...]
    """Targets in which all weights are pruned."""


def pruning_error(weights: Iterable[Weight], shards: ShardGroup) -> float:
    """Return δ_t."""
    pairs = [(_square(weight.error), _square(weight.source)) for weight in weights]
    sums = [sum(squares) for squares in zip(*pairs, strict=True)]
    error, norm = shards.sum(torch.tensor(sums, dtype=torch.float64, device="cpu")).tolist()
    return error / norm if norm else 0.0


def _square(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2


def stable_name(function: Callable[..., Any]) -> str:
    """Return a name of a function or callable object that is the same in another process.

    This is the name of a function; otherwise the `repr`, or the class if it does not define `repr`.

    >>> stable_name(dict.get)
    'dict.get'
    """
    cls: Any = type(function)
    shown = cls.__qualname__ if cls.__repr__ is object.__repr__ else repr(function)
    name = getattr(function, "__qualname__", None) or shown
    return re.sub(r" at 0x[0-9a-fA-F]+", "", name)  # the repr of a partial or a dataclass may contain an address


def save_weights(weights: Mapping[str, Weight]) -> dict[str, dict[str, Any]]:
    """Return masks, shapes and errors, each by name."""
    saved = {name: weight.save() for name, weight in weights.items()}
    parts = dict.fromkeys(part for weight in saved.values() for part in weight)
    return {part: {name: weight[part] for name, weight in saved.items() if part in weight} for part in parts}


def load_weights(state: Mapping[str, Any], masks: Mapping[str, Tensor], weights: Mapping[str, Weight]) -> None:
    """Restore masks and errors; the model must hold ŵ."""
    for name, weight in weights.items():
        saved = {part: state[part][name] for part in ("error", "dense", "tau") if name in state.get(part, ())}
        weight.load(masks[name], saved)


def checked_masks(
    state: Mapping[str, Any], settings: Mapping[str, Any], weights: Mapping[str, Weight]
) -> dict[str, Tensor]:
    """Return the saved masks after checking that the state fits this pruner and its model."""
    if "method" not in state:
        raise ValueError(f"this is not the state of a pruner: it has no 'method', only {list(state)[:3]}")
    for key, mine in settings.items():
        saved = state.get(key, mine)  # states from before an option existed do not contain it
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
    """Return lists as tuples: file formats such as JSON have lists only."""
    return tuple(value) if isinstance(value, list) else value


def _mask(saved: Tensor, weight: Weight) -> Tensor:
    name, parameter = weight.target.name, weight.target.param
    if is_sharded(saved) != is_sharded(parameter):
        here, there = ("sharded" if is_sharded(t) else "whole" for t in (parameter, saved))
        raise ValueError(f"{name} is {here} here and {there} in the saved state: resume with the same sharding")
    return weight.saved_mask(saved)


def _check_fit(mask: Tensor, error: Tensor | None, weight: Weight) -> None:
    """Raise unless the saved error and the model's current weights belong to the saved mask."""
    name = weight.target.name
    pruned = mask.numel() - int(torch.count_nonzero(mask))
    if error is not None and error.numel() != pruned:
        raise ValueError(f"the saved error of {name} has {error.numel()} values, its mask prunes {pruned}")
    mask = mask.to(weight.mask.device)
    if weight.memory is Memory.FORGET and not weight.was_modified and bool(torch.any(mask & ~weight.mask)):
        raise ValueError(
            f"{name} was pruned when the pruner was attached, and not with the saved masks: load the model's state "
            "after attaching the pruner and before loading the pruner's"
        )
    if weight.memory is not Memory.SOFT and torch.count_nonzero(weight.target.local[~mask]):
        raise ValueError(
            f"{name} has weights where the saved mask has none: load the model's state of the same moment "
            "before the pruner's"
        )
