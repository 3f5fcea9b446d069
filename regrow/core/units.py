"""Units of pruning: single weights, output filters, or M − N of every M weights along the input channels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import Parameter

from regrow.core.budget import rank_inside_first
from regrow.core.distributed import is_sharded, local_part
from regrow.core.modules import named_parameters, unwrap
from regrow.core.schedule import Schedule
from regrow.core.targets import Target

Criterion = Literal["l2", "l1", "rms", "fpgm", "bn"]
"""How filters are ranked; "bn" is the scale of the batch norm that follows (Liu et al. 2017)."""

CRITERIA: dict[str, Callable[[Tensor], Tensor]] = {
    "l2": lambda rows: torch.linalg.vector_norm(rows, dim=1),  # Appendix A.5
    "l1": lambda rows: rows.abs().sum(1),  # Li et al. 2017; for SNIP, the sum of its scores
    "rms": lambda rows: rows.square().mean(1).sqrt(),  # comparable between layers of different fan-in
    "fpgm": lambda rows: torch.cdist(rows.float(), rows.float()).sum(1),  # distance to the others (He et al. 2019)
}
"""Functions that score the rows of a matrix, one for each filter."""


class Units:
    """Single weights; base class of the other units."""

    def usable(self, model: nn.Module, targets: Sequence[Target], *, chosen: bool) -> list[Target]:
        """Return the targets that consist of such units; raise if one that the user has `chosen` does not."""
        return list(targets)

    def tied_parameters(self, model: nn.Module, targets: Sequence[Target]) -> list[Target]:
        """Return the parameters with one element per unit of a target, which are masked together with it."""
        return []

    def unit_sparsity(self, sparsity: float) -> float:
        """Return the fraction of units to prune for a fraction `sparsity` of the weights."""
        return sparsity

    def check(self, schedule: Schedule) -> None:
        """Raise if these units cannot follow the schedule."""

    def scores(self, target: Target, score: Tensor) -> Tensor:
        """Return one score per unit."""
        return score

    def unpruned(self, target: Target, mask: Tensor) -> Tensor:
        """Return for each unit whether all of its weights are in the mask."""
        return mask

    def mask(self, target: Target, score: Tensor, keep: Tensor, among: Tensor | None) -> Tensor:
        """Return the mask of the weights for a mask `keep` of the units.

        Inside a unit that is pruned in part, weights in the mask `among` are kept first.
        """
        return keep

    def all_masks(self, target: Target, mask: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) of the target and of its tied parameters."""
        return [(target.name, mask)]


@dataclass(frozen=True)
class Filters(Units):
    """Output filters (rows of a linear layer)."""

    criterion: Criterion = "l2"
    channels: bool = False
    scales: dict[str, Parameter] = field(default_factory=dict)
    """With criterion="bn", the scales of the batch norms, by target."""
    tied: dict[str, list[Target]] = field(default_factory=dict)
    """The parameters that are masked together with a target's filters."""

    def usable(self, model: nn.Module, targets: Sequence[Target], *, chosen: bool) -> list[Target]:
        """Return all targets; find the batch norms if the criterion needs them."""
        check_rows(targets, "unit='filter'")
        if self.criterion == "fpgm" and any(is_sharded(target.param) for target in targets):
            raise ValueError("criterion='fpgm' compares all filters of a layer: sharded weights need another one")
        if self.criterion == "bn":
            self.scales.update(norm_scales(model, targets))
        return list(targets)

    def tied_parameters(self, model: nn.Module, targets: Sequence[Target]) -> list[Target]:
        """Return biases and batch norm parameters, with `channels`."""
        self.tied.update(tied_parameters(model, targets) if self.channels else {})
        return [parameter for each in self.tied.values() for parameter in each]

    def scores(self, target: Target, score: Tensor) -> Tensor:
        """Return one score per filter."""
        if self.criterion == "bn":
            return local_part(self.scales[target.name])
        return CRITERIA[self.criterion](target.by_filter(score))

    def unpruned(self, target: Target, mask: Tensor) -> Tensor:
        """Return for each filter whether all of its weights are in the mask."""
        return target.by_filter(mask).all(1)

    def mask(self, target: Target, score: Tensor, keep: Tensor, among: Tensor | None) -> Tensor:
        """Return the mask of the weights: each filter is kept or pruned as a whole."""
        return target.spread(keep)

    def all_masks(self, target: Target, mask: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) of the target and of its tied parameters."""
        filters = self.unpruned(target, mask) if target.name in self.tied else mask
        return [(target.name, mask), *((parameter.name, filters) for parameter in self.tied.get(target.name, ()))]


@dataclass(frozen=True)
class Groups(Units):
    """N:M: the N largest of M weights in neighboring input channels are kept.

    A ramp converts group after group, beginning with those whose M − N smallest weights have the smallest l2 norm.
    """

    n: int
    m: int

    def __post_init__(self) -> None:
        check_nm(self.n, self.m)

    def usable(self, model: nn.Module, targets: Sequence[Target], *, chosen: bool) -> list[Target]:
        """Return the targets whose input channels can be divided into groups of M."""
        check_rows(targets, f"unit='{self.n}:{self.m}'")
        odd = [target for target in targets if target.inputs % self.m]
        if odd and (chosen or len(odd) == len(targets)):
            raise ValueError(
                f"unit '{self.n}:{self.m}' needs input channels in multiples of {self.m}, but {odd[0].name} has "
                f"{odd[0].inputs}{' in each group' if odd[0].groups > 1 else ''}: leave it out with targets=..."
            )
        return [target for target in targets if target not in odd]

    def check(self, schedule: Schedule) -> None:
        """Raise if the schedule does not end at 1 − N/M."""
        final = getattr(schedule, "final", self.sparsity)
        if abs(final - self.sparsity) > 1e-9:
            raise ValueError(
                f"unit '{self.n}:{self.m}' prunes exactly {self.sparsity:g} of the weights: "
                f"sparsity must be {self.sparsity:g} or a ramp to it, got {final:g}"
            )

    @property
    def sparsity(self) -> float:
        """The sparsity when every group is converted."""
        return 1 - self.n / self.m

    def unit_sparsity(self, sparsity: float) -> float:
        """Return the fraction of groups to convert."""
        if sparsity > self.sparsity + 1e-9:
            raise ValueError(
                f"unit '{self.n}:{self.m}' prunes at most {self.sparsity:g}, the schedule requests {sparsity:g}"
            )
        return min(sparsity / self.sparsity, 1.0)

    def scores(self, target: Target, score: Tensor) -> Tensor:
        """Return the norm of the weights that converting each group would prune."""
        least = self._groups(target, score).abs().topk(self.m - self.n, largest=False).values
        norms: Tensor = torch.linalg.vector_norm(least, dim=-1)
        return norms

    def unpruned(self, target: Target, mask: Tensor) -> Tensor:
        """Return for each group whether all of its weights are in the mask."""
        return self._groups(target, mask).all(-1)

    def mask(self, target: Target, score: Tensor, keep: Tensor, among: Tensor | None) -> Tensor:
        """Return the mask of the weights: the N largest of converted groups and all of the others."""
        score = score if among is None else rank_inside_first(score, among)
        largest = n_largest(self._groups(target, score), self.n)
        mask: Tensor = (largest | keep[..., None]).flatten(-2).movedim(-1, 1 - target.out_dim)
        return mask

    def _groups(self, target: Target, tensor: Tensor) -> Tensor:
        return in_groups(tensor, self.m, dim=1 - target.out_dim)


def in_groups(tensor: Tensor, m: int, *, dim: int = 1) -> Tensor:
    """Return the tensor with `dim` moved to the end and split into groups of `m` neighbors."""
    if tensor.shape[dim] % m:
        raise ValueError(f"groups of {m} need input channels in multiples of {m}, got {tensor.shape[dim]}")
    rows = tensor.movedim(dim, -1)
    groups: Tensor = rows.unflatten(-1, (rows.shape[-1] // m, m))
    return groups


def parse_nm(text: str) -> tuple[int, int] | None:
    """Return N and M of a text such as "2:4"; None if it has another form."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def check_nm(n: int, m: int) -> None:
    """Raise unless N:M is a sparsity pattern."""
    if not 0 < n < m:
        raise ValueError(f"N:M needs 0 < N < M, such as '2:4', got '{n}:{m}'")


def n_largest(groups: Tensor, n: int) -> Tensor:
    """Return a mask of the `n` largest magnitudes along the last dimension; of equal ones the last are kept."""
    order = groups.abs().argsort(dim=-1, stable=True)
    return torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order[..., order.shape[-1] - n :], True)


def parse_unit(unit: str, criterion: Criterion = "l2", *, channels: bool = False) -> Units:
    """Return the units for a name: "weight", "filter", or N:M such as "2:4"."""
    if criterion not in get_args(Criterion):
        raise ValueError(f"criterion must be one of {', '.join(get_args(Criterion))}, got {criterion!r}")
    if channels and unit != "filter":
        raise ValueError(f"channels=True masks bias and batch norm with unit='filter', not with unit={unit!r}")
    if unit == "weight":
        return Units()
    if unit == "filter":
        return Filters(criterion, channels)
    if isinstance(unit, str) and (nm := parse_nm(unit)):
        return Groups(*nm)
    raise ValueError(f"unit must be 'weight', 'filter' or N:M such as '2:4', got {unit!r}")


def check_rows(targets: Iterable[Target], option: str) -> None:
    """Raise for sharded weights whose filters would be split over several processes."""
    for target in targets:
        if is_sharded(target.param) and target.out_dim != 0:
            raise ValueError(
                f"{option} needs whole filters, but the sharded rows of {target.name}, a transposed convolution, "
                "split them over processes: leave it out with targets=..."
            )


def layers_and_norms(model: nn.Module) -> Iterator[tuple[nn.Module, _BatchNorm | None]]:
    """Yield each layer with a weight that is called once, and the batch norm that is the only user of its output."""
    model = unwrap(model)
    try:
        nodes = [node for node in fx.Tracer().trace(model).nodes if node.op == "call_module"]
    except Exception as error:
        raise ValueError(
            "torch.fx cannot trace the model, so it is unknown which batch norm follows which filter: do not use "
            f"channels=True or criterion='bn' ({error})"
        ) from error
    calls = Counter(node.target for node in nodes)
    for node in nodes:
        layer = model.get_submodule(str(node.target))
        if calls[node.target] == 1 and isinstance(getattr(layer, "weight", None), Parameter):
            users = [user.target for user in node.users if user.op == "call_module" and calls[user.target] == 1]
            norm = model.get_submodule(str(users[0])) if len(users) == len(node.users) == 1 else None
            yield layer, norm if isinstance(norm, _BatchNorm) else None


def tied_parameters(model: nn.Module, targets: Iterable[Target]) -> dict[str, list[Target]]:
    """Return for each target its bias, and scale and shift of its batch norm: one element per filter."""
    names = {id(parameter): name for name, parameter in named_parameters(model).items()}
    owners = {id(target.param): target for target in targets}
    found: dict[str, list[Target]] = {}
    for layer, norm in layers_and_norms(model):
        if owner := owners.get(id(layer.weight)):
            parameters = [getattr(layer, "bias", None), *((norm.weight, norm.bias) if norm else ())]
            fitting = [p for p in parameters if p is not None and len(p) == owner.filters]
            found[owner.name] = [Target(names[id(p)], p) for p in fitting]
    return found


def norm_scales(model: nn.Module, targets: Iterable[Target]) -> dict[str, Parameter]:
    """Return for each target the scale of the batch norm that follows it; raise if there is none."""
    scales = {id(layer.weight): norm.weight for layer, norm in layers_and_norms(model) if norm and norm.affine}
    missing = [target.name for target in targets if id(target.param) not in scales]
    if missing:
        raise ValueError(
            f"criterion='bn' ranks filters by the scale of the batch norm right after them, and {missing[0]} has none: "
            "leave it out with targets=..., or use criterion='l2'"
        )
    return {target.name: scales[id(target.param)] for target in targets}
