"""What is pruned as one: in Algorithm 1 every weight for itself, in a subclass several together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from regrow.core.schedule import Schedule
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
