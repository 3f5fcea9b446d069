"""Gradual magnitude pruning (Zhu & Gupta 2017): the ramp of DPF without its feedback.

Once per epoch the smallest of the remaining weights are pruned, and never grow back. Defaults are those of the
comparison in the DPF paper (Appendix A.2): one global threshold, a cubic ramp from step 0 (`sparsity=Cubic(0.9,
end=...)`), last linear layer dense. Different from the authors' code: they prune the same fraction of every layer
(`scope="layer"`) and mask the gradient; here pruned weights are set to zero after every step.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from regrow.core.options import EPOCH, MethodInfo
from regrow.core.pruner import Pruner


class Incremental(Pruner):
    """Prunes `model` gradually while `optimizer` trains it; pruned weights stay pruned (m_{t+1} <= m_t).

    `every` is the number of optimizer steps between masks: `len(loader)` is once per epoch, as in the comparison.
    """

    info = MethodInfo(
        paper="Zhu & Gupta 2017",
        when="every `every` steps along a ramp",
        score="magnitude of what is left",
        cost="one selection over n",
    )
    period = EPOCH

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the largest of the weights that are left; a schedule that falls gives nothing back."""
        asked = self.by_group(self.schedule(t))
        wanted = {pattern: max(self.levels[pattern], level) for pattern, level in asked.items()}
        return self.keep_top(self.weights, wanted, among=self.masks)
