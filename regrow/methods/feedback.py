"""Error feedback for any compressor, not only masks (Section 4 covers them all).

The gradient is evaluated at ŵ = C(w) and applied to w. With `Sign` this is BinaryConnect (Courbariaux et al. 2015)
without clipping of w; with `Uniform` it is quantization-aware training with a straight-through gradient; with a mask of
the largest weights it is DPF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.compressors import Compressor, parse_compressor
from regrow.core.distributed import is_sharded
from regrow.core.hooks import WeightDecayAt
from regrow.core.options import MethodInfo, TargetOptions
from regrow.core.pruner import Pruner
from regrow.core.state import Masks, stable_name
from regrow.core.targets import Target
from regrow.core.weights import Memory, Weight


class Feedback(Pruner):
    """Keeps C(w) in `model` while `optimizer` trains w; C is `compressor`, any function of one weight tensor.

    `regrow.compressors` has `Sign()`, `Uniform(bits)`, `NM(n, m)` and `LowRank(rank)`, which can also be passed by name
    ("sign", "4 bits", "2:4", "rank 8"). In `stats()`, δ_t is the compressor's error ‖w − ŵ‖² / ‖w‖², and sparsity
    counts the zeros in C(w).
    """

    info = MethodInfo(
        paper="Courbariaux et al. 2015; Section 4",
        when="every step",
        score="any compressor C(w)",
        cost="one C(w), every step",
        budget="what the compressor leaves",
    )
    memory = Memory.KEEP
    takes_sparsity = False
    has_mask = False
    resume_options = (*Pruner.resume_options, "compression")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        compressor: Compressor | str,
        weight_decay_at: WeightDecayAt = "dense",
        **options: Unpack[TargetOptions],
    ) -> None:
        self.compressor = parse_compressor(compressor) if isinstance(compressor, str) else compressor
        self.compression = stable_name(self.compressor)
        super().__init__(model, optimizer, sparsity=0.0, weight_decay_at=weight_decay_at, **options)

    def updates_at(self, t: int) -> bool:
        """Return False: there is no mask, and every step compresses w."""
        return False

    def make_weight(self, target: Target) -> Weight:
        """Return the object that stores C(w) in the parameter and w in a second tensor."""
        if is_sharded(target.param):
            raise TypeError(f"{target.name} is sharded, and a compressor needs whole tensors: use DDP instead")
        return _Compressed(target, self.compressor)

    @property
    def masks(self) -> Masks:
        """Where ŵ is not zero."""
        return Masks({name: weight.pruned != 0 for name, weight in self._weights.items()})

    def _kept(self, weight: Weight) -> Tensor:
        """Return where ŵ is not zero."""
        return weight.target.local != 0

    def freeze(self) -> None:
        """Raise a TypeError: a compressor has no mask that could be fixed."""
        raise TypeError("Feedback has no mask to freeze: detach() leaves the model compressed")

    def extra_state(self) -> dict[str, Any]:
        """Return w itself: unlike with a mask, it cannot be recovered exactly from ŵ and an error."""
        return {name: weight.clone() for name, weight in self.weights.items()}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore w."""
        for name, weight in self.weights.items():
            weight.copy_(state[name])


class _Compressed(Weight):
    def __init__(self, target: Target, compressor: Compressor) -> None:
        self._compressor = compressor
        _check(target, compressor)
        super().__init__(target, Memory.KEEP)

    def sample_matches(self, step: int) -> bool:
        return True  # a compressor needs all elements

    def compute_pruned(self) -> None:
        with torch.no_grad():
            self.pruned.copy_(self._compressor(self.source))

    def accept_external_write(self) -> bool:
        self.bind_storage()
        # After swapping an average in and back, the parameter holds C(w) and w is still valid.
        if not torch.equal(self.pruned, self._compressor(self.source)):
            self.source.copy_(self.pruned)
        return False


def _check(target: Target, compressor: Compressor) -> None:
    result: object = compressor(target.param.detach().clone())
    if not isinstance(result, Tensor) or result.shape != target.param.shape:
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"the compressor must return a tensor of shape {tuple(target.param.shape)}, got {got}")
