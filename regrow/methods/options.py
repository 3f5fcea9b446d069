"""What most methods pass on to `Pruner`, and the error for what they cannot do without."""

from __future__ import annotations

from typing import TypedDict

import torch.distributed as dist

from regrow.core.budget import Scope
from regrow.core.pruner import Decay
from regrow.core.score import Criterion
from regrow.core.targets import TargetSpec


class Options(TypedDict, total=False):
    """The options of `Pruner` that a magnitude method leaves as they are."""

    scope: Scope
    unit: str
    criterion: Criterion
    targets: TargetSpec
    include_last: bool
    floor: int
    decay: Decay
    group: dist.ProcessGroup | None


def needed(method: object, value: int | None, name: str, meaning: str) -> int:
    """Return `value`, or say what to pass if it is missing."""
    if value is None:
        raise ValueError(f"{type(method).__name__} needs {name}=, {meaning}")
    return value


def check_share(name: str, value: float) -> float:
    """Return `value` if it is a share of connections."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be a share in [0, 1], got {value:g}")
    return value
