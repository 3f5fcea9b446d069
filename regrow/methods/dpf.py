"""Dynamic pruning with feedback (Lin et al., ICLR 2020): gradients at the pruned weights, updates on the dense ones."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from regrow.core.weights import Memory
from regrow.methods.about import About
from regrow.methods.steady import Steady


class DPF(Steady):
    """Keeps `model` pruned while `optimizer` trains the dense weights behind it (Algorithm 1).

    Every `every` steps the mask is recomputed from the dense weights, so a weight that was pruned too early grows back
    as soon as its accumulated updates lift it over the threshold. The options are those of `Pruner`, and two remedies
    that go beyond the paper: `stabilise=True` and `settle=0.1, total=steps` (see `regrow.methods.steady`).
    """

    about = About(
        paper="Lin et al. 2020",
        when="every `every` steps, to the end",
        score="magnitude of the dense weights",
        cost="one selection over n",
    )
    memory = Memory.KEEP

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the largest of the dense weights, as many as the schedule leaves."""
        return self.keep_top(self.weights, self.schedule(t))
