"""One-shot pruning (Han et al. 2015): train dense, prune once by magnitude, fine-tune the rest.

Defaults are those of the comparison in the DPF paper: one global threshold, last linear layer dense. There, 60 epochs
of fine-tuning with the mask fixed follow; here the training loop decides how many. Different from the authors' code:
they choose a threshold per layer (a multiple of its standard deviation) and prune in several rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_steps
from regrow.core.options import MethodInfo, PrunerOptions
from regrow.core.pruner import Pruner
from regrow.core.schedule import Sparsity


class OneShot(Pruner):
    """Prunes `model` once, after `at` optimizer steps, and keeps that mask.

    `at=0` prunes a trained model when it is attached; `at=epochs * len(loader)` trains it dense first.
    """

    info = MethodInfo(
        paper="Han et al. 2015",
        when="once, at step `at`",
        score="magnitude",
        cost="one selection over n, once",
    )
    resume_options = (*Pruner.resume_options, "at")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Sparsity,
        at: int = 0,
        **options: Unpack[PrunerOptions],
    ) -> None:
        check_steps("at", at, least=0)
        self.at = at
        super().__init__(model, optimizer, sparsity=sparsity, **options)

    def updates_at(self, t: int) -> bool:
        """Return whether this is the step."""
        return t == self.at

    def shortfall(self, steps: int, until: int | None = None) -> str:
        """Return that nothing is pruned if `at` lies beyond a training of `steps` optimizer steps."""
        if self.at > steps:
            return f"OneShot never prunes: at={self.at:,} is beyond the {steps:,} steps of this training."
        return super().shortfall(steps, until)

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the largest weights."""
        return self.keep_top(self.weights, self.schedule(t))
