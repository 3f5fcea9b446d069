"""What is pruned as one: every weight for itself, output filters, or all but N of M weights along input channels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter

from regrow.choices.budget import alive
from regrow.choices.channels import companions, norm_scales
from regrow.choices.score import CRITERIA, Criterion
from regrow.core.schedule import Schedule
from regrow.host.shards import held, is_sharded
from regrow.host.targets import Target


class Units:
    """Every weight for itself."""

    def usable(self, model: nn.Module, targets: Sequence[Target], *, chosen: bool) -> list[Target]:
        """Return the targets that consist of such units; those that were `chosen` by name must."""
        return list(targets)

    def companions(self, model: nn.Module, targets: Sequence[Target]) -> list[Target]:
        """Return the parameters with one element per unit of a target that are masked along with it."""
        return []

    def share(self, sparsity: float) -> float:
        """Return which share of the units is pruned for a share `sparsity` of the weights."""
        return sparsity

    def check(self, schedule: Schedule) -> None:
        """Refuse a schedule that these units cannot follow."""

    def scores(self, target: Target, score: Tensor) -> Tensor:
        """Return one score per unit."""
        return score

    def whole(self, target: Target, mask: Tensor) -> Tensor:
        """Tell which units nothing has been pruned of."""
        return mask

    def mask(self, target: Target, score: Tensor, keep: Tensor, among: Tensor | None) -> Tensor:
        """Return the mask of the weights when the units `keep` stay, inside `among`."""
        return keep

    def spread(self, target: Target, mask: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Return the mask of the weights by name, and those of what goes with them."""
        return [(target.name, mask)]


@dataclass(frozen=True)
class Filters(Units):
    """Output filters (rows of a linear layer)."""

    criterion: Criterion = "l2"
    channels: bool = False
    scales: dict[str, Parameter] = field(default_factory=dict)
    """The batch norms that decide, by target."""
    bound: dict[str, list[Target]] = field(default_factory=dict)
    """The parameters that go with a target's filters."""

    def usable(self, model: nn.Module, targets: Sequence[Target], *, chosen: bool) -> list[Target]:
        """Find the batch norms if it is they who decide."""
        check_rows(targets, "unit='filter'")
        if self.criterion == "fpgm" and any(is_sharded(target.param) for target in targets):
            raise ValueError("criterion='fpgm' compares all filters of a layer: sharded weights need another one")
        if self.criterion == "bn":
            self.scales.update(norm_scales(model, targets))
        return list(targets)

    def companions(self, model: nn.Module, targets: Sequence[Target]) -> list[Target]:
        """Take bias and batch norm along, if they are to go with their filter."""
        self.bound.update(companions(model, targets) if self.channels else {})
        return [companion for each in self.bound.values() for companion in each]

    def scores(self, target: Target, score: Tensor) -> Tensor:
        """Return one score per filter."""
        if self.criterion == "bn":
            return held(self.scales[target.name])
        return CRITERIA[self.criterion](_rows(target, score))

    def whole(self, target: Target, mask: Tensor) -> Tensor:
        """Tell which filters are there."""
        return _rows(target, mask).all(1)

    def mask(self, target: Target, score: Tensor, keep: Tensor, among: Tensor | None) -> Tensor:
        """Spread one decision per filter over the filter's weights."""
        shape = [1] * score.ndim
        shape[target.out_dim] = -1
        mask: Tensor = keep.view(shape).expand_as(score)
        return mask

    def spread(self, target: Target, mask: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Let the bound parameters of a filter go with it."""
        filters = self.whole(target, mask) if target.name in self.bound else mask
        return [(target.name, mask), *((companion.name, filters) for companion in self.bound.get(target.name, ()))]


@dataclass(frozen=True)
class Groups(Units):
    """N:M: of M weights in neighbouring input channels the N largest stay; a ramp converts group after group.

    First those whose M − N smallest weights are the smallest in l2 norm.
    """

    n: int
    m: int

    def usable(self, model: nn.Module, targets: Sequence[Target], *, chosen: bool) -> list[Target]:
        """Leave out layers whose input channels do not divide into groups of M."""
        check_rows(targets, f"unit='{self.n}:{self.m}'")
        odd = [target for target in targets if target.param.shape[1 - target.out_dim] % self.m]
        if odd and (chosen or len(odd) == len(targets)):
            raise ValueError(
                f"unit '{self.n}:{self.m}' needs input channels in multiples of {self.m}, but {odd[0].name} has "
                f"{odd[0].param.shape[1 - odd[0].out_dim]}: leave it out with targets=..."
            )
        return [target for target in targets if target not in odd]

    def check(self, schedule: Schedule) -> None:
        """Refuse what does not end at 1 − N/M."""
        final = getattr(schedule, "final", self.sparsity)
        if abs(final - self.sparsity) > 1e-9:
            raise ValueError(
                f"unit '{self.n}:{self.m}' prunes {self.sparsity:g} of the weights, no more and no less: "
                f"sparsity must be {self.sparsity:g} or a ramp to it, got {final:g}"
            )

    @property
    def sparsity(self) -> float:
        """The sparsity when every group is converted."""
        return 1 - self.n / self.m

    def share(self, sparsity: float) -> float:
        """Return which share of the groups is converted."""
        if sparsity > self.sparsity + 1e-9:
            raise ValueError(
                f"unit '{self.n}:{self.m}' prunes at most {self.sparsity:g}, the schedule asks {sparsity:g}"
            )
        return min(sparsity / self.sparsity, 1.0)

    def scores(self, target: Target, score: Tensor) -> Tensor:
        """Return what converting each group would take away."""
        least = self._groups(target, score).abs().topk(self.m - self.n, largest=False).values
        norms: Tensor = torch.linalg.vector_norm(least, dim=-1)
        return norms

    def whole(self, target: Target, mask: Tensor) -> Tensor:
        """Tell which groups are not converted."""
        return self._groups(target, mask).all(-1)

    def mask(self, target: Target, score: Tensor, keep: Tensor, among: Tensor | None) -> Tensor:
        """Keep the N largest of converted groups and all of the others."""
        score = score.abs() if among is None else alive(score, among)
        order = self._groups(target, score).argsort(dim=-1, stable=True)
        largest = torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order[..., self.m - self.n :], True)
        mask: Tensor = (largest | keep[..., None]).flatten(-2).movedim(-1, 1 - target.out_dim)
        return mask

    def _groups(self, target: Target, tensor: Tensor) -> Tensor:
        rows = tensor.movedim(1 - target.out_dim, -1)
        groups: Tensor = rows.unflatten(-1, (rows.shape[-1] // self.m, self.m))
        return groups


def parse_unit(unit: str, criterion: Criterion = "l2", *, channels: bool = False) -> Units:
    """Return the units that a name stands for: "weight", "filter", or N:M such as "2:4"."""
    if criterion not in get_args(Criterion):
        raise ValueError(f"criterion must be one of {', '.join(get_args(Criterion))}, got {criterion!r}")
    if channels and unit != "filter":
        raise ValueError(f"channels=True takes bias and batch norm along with unit='filter', not with unit={unit!r}")
    if unit == "weight":
        return Units()
    if unit == "filter":
        return Filters(criterion, channels)
    if isinstance(unit, str) and (pattern := re.fullmatch(r"(\d+):(\d+)", unit)):
        n, m = int(pattern[1]), int(pattern[2])
        if 0 < n < m:
            return Groups(n, m)
    raise ValueError(f"unit must be 'weight', 'filter' or N:M with 0 < N < M such as '2:4', got {unit!r}")


def check_rows(targets: Iterable[Target], option: str) -> None:
    """Refuse sharded weights whose filters would lie in several processes."""
    for target in targets:
        if is_sharded(target.param) and target.out_dim != 0:
            raise ValueError(
                f"{option} needs whole filters, and those of {target.name}, a transposed convolution, are spread over "
                "processes when its rows are: leave it out with targets=..."
            )


def _rows(target: Target, tensor: Tensor) -> Tensor:
    return tensor.movedim(target.out_dim, 0).flatten(1)
