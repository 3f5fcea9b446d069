"""Base class of methods that train dense and sparse in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from typing import Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_fraction
from regrow.core.distributed import local_part
from regrow.core.options import PrunerOptions, check_constant, required_total
from regrow.core.pruner import Pruner
from regrow.core.schedule import Level


class Phases(Pruner, ABC):
    """Starts dense and alternates between sparse and dense phases at the fractions `switches` of `total_steps`."""

    switches: tuple[float, ...]
    has_own_schedule = True
    takes_schedule = False
    total_steps: int
    resume_options = (*Pruner.resume_options, "total_steps", "switches")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Level,
        total_steps: int | None = None,
        switches: tuple[float, ...] | None = None,
        **options: Unpack[PrunerOptions],
    ) -> None:
        self.total_steps = required_total(self, total_steps)
        given = self.switches if switches is None else switches
        self.check_count(len(given))
        self.switches = tuple(check_fraction("each of the switches", each) for each in given)
        if list(self.switches) != sorted(self.switches):
            raise ValueError(f"switches must be fractions of training in ascending order, got {list(given)}")
        self._turns = [round(each * self.total_steps) for each in self.switches]
        check_constant(self, sparsity, "has phases in place of a ramp")
        super().__init__(model, optimizer, sparsity=sparsity, **options)

    @abstractmethod
    def check_count(self, switches: int) -> None:
        """Raise if this is not the number of switches that the method needs."""

    @abstractmethod
    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) pairs for the phase that begins after step `t`."""

    def updates_at(self, t: int) -> bool:
        """Return whether a phase begins after step `t`."""
        return t in self._turns

    def sparse_after(self, t: int) -> bool:
        """Return whether the steps after step `t` belong to a sparse phase."""
        return bisect_right(self._turns, t) % 2 == 1

    def reset_momentum(self) -> None:
        """Set the momentum of every parameter of the optimizer to zero, pruned or not."""
        for state in self.optimizer.state.values():
            for key in ("momentum_buffer", "exp_avg"):
                if isinstance(state.get(key), Tensor):
                    local_part(state[key]).zero_()
