"""What a pruned parameter holds: ŵ = m⊙w in the model's own storage, and the dense w behind it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from regrow.checks import warn
from regrow.host.layout import bit_view, like, pack, unpack
from regrow.host.targets import Target, check_storage

_SAMPLED = 64  # elements of a layer that are compared at a step, and up to twice as many
_LAYERS = 32  # in which this is done at most; in deeper networks they take turns


class Memory(Enum):
    """What happens to pruned weights."""

    KEEP = "keep"
    """They live on behind the model and are trained with it (feedback)."""
    FORGET = "forget"
    """They are zero after every step."""
    SOFT = "soft"
    """They are zeroed once, when the mask is made, and free to grow until the next one."""


class Weight:
    """One target: the parameter, its mask m, and the dense weights w behind it while they are kept.

    Between steps the parameter holds ŵ in the storage it always had, so that compiled graphs, DDP buckets and CUDA
    graphs stay valid. During a step it is pointed at the dense weights: the optimizer updates them directly, nothing
    is restored from an error and nothing is rounded.
    """

    def __init__(self, target: Target, memory: Memory) -> None:
        self.target, self.memory, self.pruned = target, memory, target.held
        self.mask = torch.ones_like(self.pruned, dtype=torch.bool)
        self.dense = self.room().clone() if memory is Memory.KEEP else None
        self.bind()

    def bind(self) -> None:
        """Take the parameter's present storage as the place of ŵ and lay the views with which it is written."""
        check_storage(self.target)
        self.pruned = self.target.held
        self.mask = like(self.pruned, self.mask, torch.bool)
        if self.dense is not None:
            self.dense = like(self.room(), self.dense, self.pruned.dtype)
        self._places = (self.pruned.data_ptr(), self.source.data_ptr())
        self._views = tuple(map(bit_view, (self.source, self.mask, self.pruned)))
        self.mark()

    def room(self) -> Tensor:
        """Return the present values, on the device and in the memory format that the dense weights are to have."""
        return self.pruned

    @property
    def source(self) -> Tensor:
        """The weights that are trained: the dense ones if they are kept, otherwise those of the model."""
        return self.pruned if self.dense is None else self.dense

    @property
    def left(self) -> Tensor:
        """Where there is a weight: in the mask and, if what is pruned is free to grow, where it has grown since."""
        return self.mask | (self.pruned != 0) if self.memory is Memory.SOFT else self.mask

    @property
    def error(self) -> Tensor:
        """The paper's e = ŵ − w."""
        return self.pruned - self.source.to(self.pruned.device)

    def show(self) -> None:
        """Let the parameter hold w."""
        if self.dense is not None:
            self.target.param.data = self.dense

    def prune(self) -> None:
        """Let the parameter hold ŵ again, in its own storage."""
        parameter = self.target.param
        if parameter.data_ptr() not in self._places:
            self.source.copy_(parameter.data)  # an optimizer put new storage in place of updating w where it was
        self.write()
        parameter.data = self.pruned

    def write(self) -> None:
        """Compute ŵ = m⊙w."""
        masked(*self._views)

    def point_back(self) -> None:
        """Let the parameter keep its values, in the storage of ŵ, if it points at the dense weights."""
        if self.dense is not None and self.target.param.data_ptr() == self.dense.data_ptr():
            self.pruned.copy_(self.dense)
            self.target.param.data = self.pruned

    def forget(self) -> None:
        """Drop the dense weights; what is pruned is gone."""
        self.memory, self.dense = Memory.FORGET, None
        self.bind()

    def mark(self) -> None:
        """Remember the parameter as it is, so that `touched` sees later writes by others."""
        self._version = self.target.param._version

    @property
    def touched(self) -> bool:
        """Whether someone else wrote to the parameter, or gave it another storage, since the last `mark`."""
        parameter = self.target.param
        return parameter._version != self._version or parameter.data_ptr() != self._places[0]

    def intact(self, step: int) -> bool:
        """Tell whether a few elements still are m⊙w: writes through `.data` leave `touched` as it was.

        Others are looked at each time, so that who writes again and again is found. Only on the CPU, where looking
        costs microseconds; elsewhere it would have to wait for the device.
        """
        source, mask, pruned = self._views
        if self.dense is None or not isinstance(pruned, np.ndarray):
            return True
        few = self.sample(step)
        same: bool = (source[few] * mask[few]).tobytes() == pruned[few].tobytes()
        return same

    def sample(self, step: int) -> slice:
        """Return which elements, in the order of memory, are looked at in turn `step`."""
        apart = self.pruned.numel() // _SAMPLED or 1
        return slice(step % apart, None, apart)

    def adopt(self) -> bool:
        """Take over weights written from outside; return whether they had weights where the mask has none.

        Weights that respect the mask (an average swapped in and back, a checkpoint of the pruned model) replace the
        kept part of w and leave the pruned part alone; others become w as a whole.
        """
        self.bind()
        dense = bool(torch.count_nonzero(self.pruned[~self.mask]))
        if self.dense is not None:
            behind = self.dense.to(self.pruned.device)
            self.dense.copy_(self.pruned if dense else torch.where(self.mask, self.pruned, behind))
        return dense and self.memory is not Memory.SOFT

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs: the mask in bits, and the error e where it is not zero."""
        source = self.source  # ŵ is zero where it is pruned, so e = −w there, also while the parameter holds w
        kept = {} if self.dense is None else {"error": -source[~self.mask.to(source.device)].cpu()}
        return {"masks": pack(self.mask), "shapes": list(self.target.param.shape), **kept}

    def saved_mask(self, saved: Tensor) -> Tensor:
        """Return the mask of which `save` made `saved`."""
        return unpack(saved, self.mask.shape, self.target.name)

    def load(self, mask: Tensor, saved: Mapping[str, Any]) -> None:
        """Take over a mask and what `save` returned with it; the parameter holds ŵ."""
        self.bind()
        self.mask.copy_(mask)
        if self.dense is not None:
            self.dense.copy_(self.pruned)
            self.dense[~self.mask.to(self.dense.device)] = -saved["error"].to(self.dense)


class Weights(dict[str, Weight]):
    """All that a pruner holds; `shown` while the parameters hold w, as they do during a step."""

    shown = False

    def show(self) -> None:
        """Let the parameters hold w."""
        self.shown = True  # first: whoever is interrupted in between hides again
        for weight in self.values():
            weight.show()

    def hide(self) -> None:
        """Let the parameters hold ŵ."""
        for weight in reversed(self.values()):  # what the optimizer touched last is still in the cache
            if weight.memory is not Memory.SOFT:
                weight.prune()
        # Autograd could not know that a backward pass from here on does not meet the weights of an earlier forward one.
        increment_version([weight.target.param for weight in self.values()])
        for weight in self.values():
            weight.mark()
        self.shown = False

    def point_back(self) -> None:
        """Let the parameters keep the values they have, in the storage of ŵ."""
        for weight in self.values():
            weight.point_back()
        self.shown = False

    def forget(self) -> None:
        """Drop all dense weights."""
        for weight in self.values():
            weight.forget()

    def adopt(self, step: int) -> None:
        """Take over what others have written since the last step."""
        if self.shown:
            return
        touched = {name: weight for name, weight in self.items() if weight.touched}
        turns = -(-len(self) // _LAYERS)
        round_, turn = divmod(step, turns)
        looked_at = list(self.items())[turn::turns]
        unseen = [name for name, weight in looked_at if name not in touched and not weight.intact(round_)]
        if unseen:
            warn(
                f"{unseen[0]} was written through .data, which leaves no trace for autograd. All weights are taken as "
                "they are, but only a few elements of each are looked at: write under torch.no_grad() instead."
            )
        for name, weight in (self if unseen else touched).items():
            if weight.adopt() and not unseen:
                warn(
                    f"{name} was given new weights since the last step, some where it is pruned. They are taken as its "
                    "dense weights and pruned after this step. Attach the pruner after loading, and a new one to an "
                    "optimizer that takes the place of its own."
                )


def masked(source: Any, mask: Any, result: Any) -> None:
    """Write `source` where `mask` is True, +0.0 elsewhere; all three are views of bits."""
    if isinstance(result, np.ndarray):
        # Bits times 0 or 1: exact for every float, and the one masking that runs at the speed of memory.
        np.multiply(source, mask, out=result)
    else:
        torch.mul(source, mask, out=result)
