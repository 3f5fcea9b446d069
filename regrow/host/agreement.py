"""Finds processes that hold different weights or masks before they train apart."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor

from regrow.host.layout import pack


class DisagreementError(RuntimeError):
    """Processes that should train the same model do not."""


class Agreement:
    """The processes of `group` (by default all), which train the same model; on a difference all of them raise.

    Shards need none: they make one mask together.
    """

    def __init__(self, group: dist.ProcessGroup | None, *, needed: bool) -> None:
        self._group, self._needed, self._started = group, needed, False

    def check_start(self, masks: Iterable[Tensor], weights: Iterable[Tensor]) -> None:
        """Raise if the processes do not start from the same masks and weights; later calls do nothing."""
        if not self._started:
            self._check(
                chain(map(pack, masks), weights),
                "the ranks hold different masks or dense weights (digests {}). Attach the pruner after "
                "DistributedDataParallel has synchronised the model, or seed all ranks alike; ranks that train "
                "different models need a process group of their own (group=...)",
            )
        self._started = True

    def check_masks(self, masks: Iterable[Tensor], *, step: int) -> None:
        """Raise if the processes have not made the same masks."""
        self._check(
            map(pack, masks),
            f"at step {step} the ranks made different masks (digests {{}}): their weights have drifted apart. "
            "Look for what differs between them: a weight written on one rank only, gradients that are not averaged, "
            "another version of a library. Go on from a checkpoint of one rank",
        )

    def _check(self, tensors: Iterable[Tensor], problem: str) -> None:
        alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self._group) == 1
        if alone or not self._needed:
            return
        mine = 0
        for tensor in tensors:
            mine = zlib.crc32(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), mine)
        everyone: list[int] = [0] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, mine, group=self._group)
        if len(set(everyone)) > 1:
            raise DisagreementError(problem.format(", ".join(f"{value:08x}" for value in everyone)))
