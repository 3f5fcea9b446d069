"""Finds ranks that hold different weights or masks before they train apart."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch
import torch.distributed as dist

from regrow.core.masks import pack
from regrow.core.weights import Weight


class DisagreementError(RuntimeError):
    """Processes that should train the same model do not."""


def check(
    weights: Iterable[Weight], group: dist.ProcessGroup | None = None, *, step: int = 0, masks_only: bool = False
) -> None:
    """Raise on every rank of `group` (by default all) if masks, or also the weights behind them, differ."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return
    mine = digest(weights, masks_only=masks_only)
    all_of_them: list[int] = [0] * dist.get_world_size(group)
    dist.all_gather_object(all_of_them, mine, group=group)
    if len(set(all_of_them)) > 1:
        digests = ", ".join(f"{value:08x}" for value in all_of_them)
        raise DisagreementError(
            f"at step {step} the ranks made different masks (digests {digests}): their weights have drifted apart. "
            "Look for what differs between them: a weight written on one rank only, gradients that are not averaged, "
            "another version of a library. Go on from a checkpoint of one rank"
            if masks_only
            else f"the ranks hold different masks or dense weights (digests {digests}). Attach the pruner after "
            "DistributedDataParallel has synchronised the model, or seed all ranks alike; ranks that train different "
            "models need a process group of their own (group=...)"
        )


def digest(weights: Iterable[Weight], *, masks_only: bool = False) -> int:
    """Return a checksum of masks and, unless told otherwise, trained weights."""
    value = 0
    for weight in weights:
        value = zlib.crc32(pack(weight.mask).numpy().tobytes(), value)
        if not masks_only:
            value = zlib.crc32(weight.source.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), value)
    return value
