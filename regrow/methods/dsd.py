"""DSD, dense-sparse-dense training (Han et al. 2017): a sparse phase regularizes a network that ends dense.

The smallest weights are pruned once, and the others are trained with that mask. Then all weights are trained again, the
pruned ones from zero. Momentum is reset when a phase begins, because the phases are separate trainings in the paper. By
default they take half, a quarter and a quarter of training. Different from the authors' code: they train the first
phase to convergence and choose the lengths by hand. They divide the learning rate by ten for the last phase; here the
training loop sets the learning rate. They prune the same fraction of each layer (`scope="layer"`; 0.3 in their
ImageNet models) instead of the smallest weights over all layers. Here the last linear layer stays dense.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from regrow.core.options import MethodInfo
from regrow.methods.phases import Phases


class DSD(Phases):
    """Trains `model` dense, sparse and dense again; `total_steps` is the length of training.

    `switches` are the fractions of it at which the sparse phase begins and ends. The trained model is dense.
    """

    info = MethodInfo(
        paper="Han et al. 2017",
        when="once; nothing stays pruned",
        score="magnitude",
        cost="one selection over n, once",
    )
    ends_dense = True
    switches = (0.5, 0.75)

    def check_count(self, switches: int) -> None:
        """Raise unless there are two: the begin and the end of the sparse phase."""
        if switches != 2:
            raise ValueError(f"DSD has one sparse phase: switches must be two fractions, got {switches}")

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the largest weights in the sparse phase, all after it."""
        self.reset_momentum()
        return self.keep_top(self.weights, self.schedule(t) if self.sparse_after(t) else 0.0)
