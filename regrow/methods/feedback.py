"""Error feedback for any compressor, of which a mask is the special case (Section 4 covers them all).

The gradient is evaluated at ŵ = C(w) and applied to w: with `Sign` this is BinaryConnect (Courbariaux et al. 2015)
without its clipping of w, with `Uniform` quantization-aware training with a straight-through gradient, with a mask of
the largest weights DPF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.choices.decay import Decay
from regrow.core.masks import Masks
from regrow.core.state import name_of
from regrow.core.weights import Memory, Weight
from regrow.host.shards import is_sharded
from regrow.host.targets import Target, TargetSpec
from regrow.methods.about import About
from regrow.methods.compressors import Compressor, parse_compressor
from regrow.methods.pruner import Pruner


class Feedback(Pruner):
    """Keeps C(w) in `model` while `optimizer` trains w; C is `compressor`, any function of one weight tensor.

    `regrow.Sign()`, `regrow.Uniform(bits)`, `regrow.NM(n, m)` and `regrow.LowRank(rank)` are ready to use, by name
    too ("sign", "4 bits", "2:4", "rank 8"). Of `stats()` δ_t is the compressor's quality ‖w − ŵ‖² / ‖w‖², and sparsity
    counts the zeros that it made.
    """

    about = About(
        paper="Courbariaux et al. 2015; Section 4",
        when="every step",
        score="any compressor C(w)",
        cost="one C(w), every step",
        budget="what the compressor leaves",
    )
    memory = Memory.KEEP
    shared = (*Pruner.shared, "compression")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        compressor: Compressor | str,
        targets: TargetSpec = None,
        include_last: bool = False,
        decay: Decay = "dense",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.compressor = parse_compressor(compressor) if isinstance(compressor, str) else compressor
        self.compression = name_of(self.compressor)
        super().__init__(
            model,
            optimizer,
            sparsity=0.0,
            targets=targets,
            include_last=include_last,
            decay=decay,
            group=group,
        )

    def due(self, t: int) -> bool:
        """Never: there is no mask, every step compresses anew."""
        return False

    def hold(self, target: Target) -> Weight:
        """Return what keeps C(w) in the parameter and w behind it."""
        if is_sharded(target.param):
            raise TypeError(f"{target.name} is sharded, and a compressor sees whole tensors: use DDP instead")
        return _Compressed(target, self.compressor)

    @property
    def masks(self) -> Masks:
        """Where ŵ is not zero."""
        return Masks({name: weight.pruned != 0 for name, weight in self._weights.items()})

    def freeze(self) -> None:
        """Refuse: a compressor has no mask that could be fixed."""
        raise TypeError("Feedback has no mask to freeze: detach() leaves the model compressed")

    def extra_state(self) -> dict[str, Any]:
        """Return w itself: unlike with a mask, ŵ and an error do not give it back exactly."""
        return {name: weight.clone() for name, weight in self.weights.items()}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take w back."""
        for name, weight in self.weights.items():
            weight.copy_(state[name])


class _Compressed(Weight):
    def __init__(self, target: Target, compressor: Compressor) -> None:
        self._compressor = compressor
        _check(target, compressor)
        super().__init__(target, Memory.KEEP)

    def intact(self, step: int) -> bool:
        return True  # what a compressor makes of w is not known from a few elements

    def write(self) -> None:
        with torch.no_grad():
            self.pruned.copy_(self._compressor(self.source))

    def adopt(self) -> bool:
        self.bind()
        # An average swapped in and back leaves C(w), behind which w is still right.
        if not torch.equal(self.pruned, self._compressor(self.source)):
            self.source.copy_(self.pruned)
        return False


def _check(target: Target, compressor: Compressor) -> None:
    result: object = compressor(target.param.detach().clone())
    if not isinstance(result, Tensor) or result.shape != target.param.shape:
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"the compressor must return a tensor of shape {tuple(target.param.shape)}, got {got}")
