"""How much of the machine is ours."""

from __future__ import annotations

import os


def cores() -> int:
    """How many of the machine's processors this process may use; in a container, fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
