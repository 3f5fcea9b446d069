"""Dynamic sparse reparameterization (Mostafa & Wang 2019): one adaptive threshold drops, random growth redistributes.

All weights below a threshold H are dropped; H doubles or halves so that an update drops about N connections
(`drop_count`). Each layer then grows connections in proportion to the number that it kept.

Defaults are the authors': random first masks with the same density in all layers. The period `every` doubles at 12.5,
40 and 70 % of training (`doublings`), and nothing moves in the last 5 %. The first convolution, 1x1 shortcuts and the
last linear layer stay dense. These are the settings for WRN-28-2; for ResNet-50 (batch 256) the authors use
`every=1000, doublings=(0.25, 0.5, 0.75), include_last=True`. New connections start with weight and momentum zero: in
the authors' code the mask is part of the forward pass, so inactive weights get no gradient and their momentum decays.
Different from the authors' code: N is 1.37 % of the targeted weights by default (the authors use absolute numbers:
20,000 for WRN-28-2 and 400,000 for ResNet-50). Rounding goes to the largest remainders instead of a random layer. H is
halved at once if more connections would be dropped than there are places to grow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_amount, check_count, check_fraction
from regrow.core.budget import split_exactly
from regrow.core.options import MethodInfo
from regrow.core.targets import find_targets
from regrow.methods.drop_and_grow import DropAndGrow, DropAndGrowOptions

_SHORTCUT = re.compile(r"shortcut|downsample|skip|proj", re.IGNORECASE)


class DSR(DropAndGrow):
    """Moves connections of `model` between places and layers; `total_steps` is the length of training."""

    info = MethodInfo(
        paper="Mostafa & Wang 2019",
        when="every `every` steps (doubling), until 95 % of `total_steps`",
        score="drop: one adaptive threshold; grow: random",
        cost="one comparison, one draw and one selection per layer",
        budget="uniform at first, then by what survives",
    )
    period = 100
    until = 0.95
    moves_between_layers = True
    resets_momentum = True  # in the authors' code, inactive weights get no gradient and have no momentum
    resume_options = (*DropAndGrow.resume_options, "drop_count", "doublings")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        every: int | Literal["auto"] = "auto",
        total_steps: int | None = None,
        drop_count: int | None = None,
        threshold: float = 1e-3,
        doublings: tuple[float, ...] = (0.125, 0.4, 0.7),
        **options: Unpack[DropAndGrowOptions],
    ) -> None:
        if options.get("targets") is None:
            options["targets"] = _authors_targets(model, include_last=options.get("include_last", False))
        if drop_count is not None:
            check_count("drop_count", drop_count, "connections per update", least=0)
        self.doublings = tuple(check_fraction("each of doublings", fraction) for fraction in doublings)
        self.drop_count, self.threshold = drop_count or 0, check_amount("threshold", threshold)
        super().__init__(model, optimizer, sparsity=sparsity, every=every, total_steps=total_steps, **options)
        if drop_count is None:
            self.drop_count = round(sum(target.param.numel() for target in self.targets.values()) * 20_000 / 1_460_000)

    def updates_at(self, t: int) -> bool:
        """Return whether connections move after step `t`."""
        period = self.every * 2 ** sum(t >= fraction * self.total_steps for fraction in self.doublings)
        return t == 0 or (t % period == 0 and t < self.until * self.total_steps)

    def drop_and_grow(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Drop all weights below the threshold, grow as many at random free places."""
        masks = dict(self.masks)
        free = self.shards.counts(~mask for mask in masks.values())
        active = sum(self.shards.counts(masks.values()))
        while True:
            kept = {name: self._survivors(name, mask) for name, mask in masks.items()}
            survivors = self.shards.counts(kept.values())
            moved = active - sum(survivors)
            if moved <= sum(free):
                break
            self.threshold /= 2
        if moved < 0.9 * self.drop_count:
            self.threshold *= 2
        elif moved > 1.1 * self.drop_count:
            self.threshold /= 2
        grown = split_exactly(moved, survivors, free)
        for (name, keep), count in zip(kept.items(), grown, strict=True):
            yield name, keep | self.keep_largest(name, self.draw(name, t), ~masks[name], count)

    def _survivors(self, name: str, mask: Tensor) -> Tensor:
        weight = self.weights[name]
        keep = mask & (weight.abs() >= self.threshold)
        left, before = self.shards.counts([keep, mask])
        return keep if left or not before else self.keep_largest(name, weight, mask, 1)

    def extra_state(self) -> dict[str, Any]:
        """Return the threshold, which adapts."""
        return {"threshold": self.threshold}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the threshold."""
        self.threshold = state["threshold"]


def _authors_targets(model: nn.Module, *, include_last: bool) -> list[str]:
    """Return the default targets without the first one and 1x1 convolutions that are named like shortcuts."""
    first, *others = find_targets(model, include_last=include_last)
    sparse = [target.name for target in others if not (_SHORTCUT.search(target.name) and _is_1x1(target.param))]
    return sparse or [first.name]


def _is_1x1(weight: Tensor) -> bool:
    """Return whether this is a 1x1 convolution; the projections of attention (`q_proj`) are linear layers."""
    return weight.ndim > 2 and weight.shape[2:].numel() == 1
