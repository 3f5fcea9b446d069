"""Finds processes that hold different weights or masks before they train apart."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


class DisagreementError(RuntimeError):
    """Processes that should train the same model do not."""


def check_start(tensors: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Raise on every rank of `group` (by default all) if they do not start from the same masks and weights."""
    _check(
        tensors,
        group,
        "the ranks hold different masks or dense weights (digests {}). Attach the pruner after "
        "DistributedDataParallel has synchronised the model, or seed all ranks alike; ranks that train different "
        "models need a process group of their own (group=...)",
    )


def check_masks(masks: Iterable[Tensor], group: dist.ProcessGroup | None, *, step: int) -> None:
    """Raise on every rank of `group` (by default all) if they have not made the same masks."""
    _check(
        masks,
        group,
        f"at step {step} the ranks made different masks (digests {{}}): their weights have drifted apart. "
        "Look for what differs between them: a weight written on one rank only, gradients that are not averaged, "
        "another version of a library. Go on from a checkpoint of one rank",
    )


def _check(tensors: Iterable[Tensor], group: dist.ProcessGroup | None, problem: str) -> None:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return
    mine = 0
    for tensor in tensors:
        mine = zlib.crc32(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), mine)
    everyone: list[int] = [0] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    if len(set(everyone)) > 1:
        raise DisagreementError(problem.format(", ".join(f"{value:08x}" for value in everyone)))
