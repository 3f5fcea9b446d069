"""Warnings that point at the user's line: hooks are called from deep inside torch."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from types import FrameType

import torch

_INSIDE = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), contextlib.__file__)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is neither of this package nor of torch."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
