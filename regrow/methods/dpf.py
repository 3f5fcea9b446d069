"""Dynamic pruning with feedback (Lin et al., ICLR 2020): gradients at the pruned weights, updates on the dense ones.

By default the threshold is hard, as in the paper: the model holds ŵ = m⊙w. The analysis in Section 4 covers other
compressors as well. `threshold="soft"` uses ŵ = m⊙sign(w)·max(|w| − τ, 0), where the mask m is the same and τ is the
largest pruned magnitude. A weight that crosses the threshold then enters or leaves the model at zero instead of at ±τ.
This is ST-3 (Vanderschueren & De Vleeschouwer 2022) with a mask every `every` steps; the rescaling of its variant ST-3σ
is left out. m and τ are constant between mask updates. After `freeze()`, or once the mask has settled, training
continues from ŵ and τ is not subtracted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Unpack, get_args

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.choices.soft import set_thresholds
from regrow.core.weights import Memory
from regrow.methods.about import About
from regrow.methods.steady import Steady, SteadyOptions

Threshold = Literal["hard", "soft"]


class DPFOptions(SteadyOptions, total=False):
    """The options of `Steady`."""

    stabilise: bool
    settle: float
    total: int | None


class DPF(Steady):
    """Keeps `model` pruned while `optimizer` trains the dense weights behind it (Algorithm 1).

    Every `every` steps the mask is recomputed from the dense weights, so a weight that was pruned too early grows back
    as soon as its accumulated updates lift it over the threshold. The options are those of `Pruner`, and three
    that go beyond the paper: `stabilise=True` and `settle=0.1, total=steps` (see `regrow.methods.steady`), and
    `threshold="soft"`, which also shrinks the kept weights by the threshold (see `regrow.methods.dpf`; it needs
    `unit="weight"` and no `floor`).
    """

    about = About(
        paper="Lin et al. 2020",
        when="every `every` steps, to the end",
        score="magnitude of the dense weights",
        cost="one selection over n",
    )
    memory = Memory.KEEP
    shared = (*Steady.shared, "threshold")

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, threshold: Threshold = "hard", **options: Unpack[DPFOptions]
    ) -> None:
        self.threshold, self._soft = threshold, threshold == "soft"
        if threshold not in get_args(Threshold):
            raise ValueError(f"threshold must be 'hard' (ŵ = m⊙w) or 'soft' (kept weights shrink), got {threshold!r}")
        if self._soft and (unit := options.get("unit", "weight")) != "weight":
            raise ValueError(f"threshold='soft' needs unit='weight', got unit={unit!r}: it shrinks single weights")
        if self._soft and (floor := options.get("floor", 0)):
            raise ValueError(
                f"threshold='soft' cannot protect weights below the threshold, which it sets to zero: floor={floor!r} "
                "needs threshold='hard'"
            )
        super().__init__(model, optimizer, **options)

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the largest of the dense weights, as many as the schedule leaves."""
        found = self.keep_top(self.weights, self.schedule(t))
        if not self._soft:
            return found
        masks = dict(found)
        set_thresholds(self._weights, masks, self.shards, one_pool=self.budget.scope == "global")
        return masks.items()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken: attach, then load the states of model, optimizer and pruner."""
        known = {"threshold": "hard", **state} if "method" in state else state  # earlier states do not name it
        super().load_state_dict(known)
