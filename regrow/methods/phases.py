"""Base class of methods that train dense and sparse by turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from typing import Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_share
from regrow.host.shards import held
from regrow.methods.options import Options, check_constant, needed
from regrow.methods.pruner import Pruner


class Phases(Pruner, ABC):
    """Starts dense and changes sides at the shares `switches` of `total_steps`: sparse, dense, sparse, ..."""

    shared = (*Pruner.shared, "total_steps", "switches")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: float,
        total_steps: int | None,
        switches: tuple[float, ...],
        **options: Unpack[Options],
    ) -> None:
        meaning = "the optimizer steps of the whole training: epochs * len(loader)"
        self.total_steps = needed(self, total_steps, "total_steps", meaning)
        self.switches = tuple(check_share("each of the switches", share) for share in switches)
        if list(self.switches) != sorted(self.switches):
            raise ValueError(f"switches must be shares of training in ascending order, got {list(switches)}")
        self._turns = [round(share * self.total_steps) for share in self.switches]
        check_constant(self, sparsity, "has phases in place of a ramp")
        super().__init__(model, optimizer, sparsity=sparsity, **options)

    @abstractmethod
    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Return (name, mask) pairs for the phase that begins after step `t`."""

    def due(self, t: int) -> bool:
        """Return whether a phase begins after step `t`."""
        return t in self._turns

    def sparse_after(self, t: int) -> bool:
        """Return whether the steps after step `t` are those of a sparse phase."""
        return bisect_right(self._turns, t) % 2 == 1

    def reset_momentum(self) -> None:
        """Set the momentum of every parameter of the optimizer to zero, pruned or not."""
        for state in self.optimizer.state.values():
            for key in ("momentum_buffer", "exp_avg"):
                if isinstance(state.get(key), Tensor):
                    held(state[key]).zero_()
