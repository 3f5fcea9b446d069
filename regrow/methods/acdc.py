"""AC/DC (Peste et al. 2021): compressed and decompressed phases alternate, and the last one is compressed.

A compressed phase begins with a new mask, which keeps the largest weights over all layers and then stays fixed. A
decompressed phase trains all weights: pruned ones start from zero, and the momentum of the whole optimizer is reset.
The default phases are those of the authors for ImageNet (100 epochs) as fractions of training: 10 % dense, then
alternately 5 % sparse and 5 % dense until 75 %, then 10 % dense and 15 % sparse. On CIFAR (200 epochs) the authors
switch at 0.05, 0.15, 0.25, ..., 0.85. Different from the authors' code: counts are exact, the last linear layer stays
dense (`include_last=True` prunes it as they do), and a phase may begin within an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from regrow.core.options import MethodInfo
from regrow.methods.phases import Phases


class ACDC(Phases):
    """Trains `model` sparse and dense in turn; `total_steps` is the length of training.

    `switches` are fractions of it. The first one begins the first sparse phase, each of the others ends a phase and
    begins the next, and the last one begins the final sparse phase: their number is odd.
    """

    info = MethodInfo(
        paper="Peste et al. 2021",
        when="at the start of each phase",
        score="magnitude",
        cost="one selection over n, once per sparse phase",
    )
    switches = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.85)  # for ImageNet

    def check_count(self, switches: int) -> None:
        """Raise unless the number is odd: the last switch begins a sparse phase."""
        if switches % 2 == 0:
            raise ValueError(
                f"ACDC ends with a sparse phase: switches must be an odd number of fractions, got {switches}"
            )

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the largest weights in a sparse phase, all in a dense one."""
        if self.sparse_after(t):
            return self.keep_top(self.weights, self.schedule(t))
        self.reset_momentum()
        return self.keep_top(self.weights, 0.0)
