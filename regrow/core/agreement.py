"""Finds ranks that hold different weights or masks before they train apart."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch
import torch.distributed as dist

from regrow.core.masks import pack
from regrow.core.weights import Weight


def check(weights: Iterable[Weight], group: dist.ProcessGroup | None = None) -> None:
    """Raise on every rank of `group` (by default all) if masks or dense weights differ between them."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return
    mine = digest(weights)
    all_of_them: list[int] = [0] * dist.get_world_size(group)
    dist.all_gather_object(all_of_them, mine, group=group)
    if len(set(all_of_them)) > 1:
        raise RuntimeError(
            f"the ranks hold different masks or dense weights (digests {', '.join(f'{d:08x}' for d in all_of_them)}). "
            "Attach the pruner after DistributedDataParallel has synchronised the model, or seed all ranks alike; "
            "ranks that train different models need a process group of their own (group=...)"
        )


def digest(weights: Iterable[Weight]) -> int:
    """Return a checksum of masks and trained weights."""
    value = 0
    for weight in weights:
        value = zlib.crc32(pack(weight.mask).numpy().tobytes(), value)
        value = zlib.crc32(weight.source.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), value)
    return value
