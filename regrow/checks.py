"""Argument checks whose errors name the wrong value and a right one, and warnings that point at the caller's line."""

from __future__ import annotations

import math
import sys
import warnings
from numbers import Integral, Real
from types import FrameType

_SKIPPED_PACKAGES = {"regrow", "torch", "contextlib"}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is outside this package and torch, which calls our hooks."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED_PACKAGES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_steps(name: str, value: object, *, least: int = 1) -> None:
    """Raise unless `value` is a whole number of optimizer steps, at least `least`; 75.0 is a whole number, too."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    check_count(name, whole, "optimizer steps", least=least)


def check_count(name: str, value: object, things: str, *, least: int) -> None:
    """Raise unless `value` is a whole number of `things`, at least `least`."""
    right = f"{name} must be a whole number of {things}, at least {least}, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(right)
    if value < least:
        raise ValueError(right)


def check_fraction(name: str, value: float, *, inside: bool = False) -> float:
    """Return `value` if it is a fraction in [0, 1], or in (0, 1) with `inside`."""
    right = "a fraction in (0, 1)" if inside else "a fraction in [0, 1]"
    number = check_number(name, value, right)
    if not (0 < number < 1 if inside else 0 <= number <= 1):
        raise ValueError(f"{name} must be {right}, got {number:g}")
    return value


def check_amount(name: str, value: float, *, zero: bool = False) -> float:
    """Return `value` if it is a finite number above 0, or at least 0 with `zero`."""
    right = "a finite number, 0 or more" if zero else "a finite number above 0"
    number = check_number(name, value, right)
    if not 0 <= number < math.inf or (number == 0 and not zero):
        raise ValueError(f"{name} must be {right}, got {number:g}")
    return value


def check_number(name: str, value: object, right: str) -> float:
    """Return `value` as a float; raise a TypeError that says what would be `right` if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {right}, got {value!r}")
    return float(value)
