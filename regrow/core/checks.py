"""Numbers that users pass: errors name the wrong value and what would be right."""

from __future__ import annotations

import math
from numbers import Integral, Real


def check_steps(name: str, value: object, *, least: int = 1) -> None:
    """Raise unless `value` is a whole number of optimizer steps, `least` or more; 0.75 * 100 is one."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    check_count(name, whole, "optimizer steps", least=least)


def check_count(name: str, value: object, things: str, *, least: int) -> None:
    """Raise unless `value` is a whole number of `things`, `least` or more."""
    right = f"{name} must be a whole number of {things}, at least {least}, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(right)
    if value < least:
        raise ValueError(right)


def check_share(name: str, value: float, *, inside: bool = False) -> float:
    """Return `value` if it is a share, which neither nothing nor all is if it must lie `inside`."""
    right = "a share in (0, 1)" if inside else "a share in [0, 1]"
    number = check_number(name, value, right)
    if not (0 < number < 1 if inside else 0 <= number <= 1):
        raise ValueError(f"{name} must be {right}, got {number:g}")
    return value


def check_amount(name: str, value: float, *, zero: bool = False) -> float:
    """Return `value` if it is a finite number above zero, or not below it if it may be `zero`."""
    right = "a finite number, 0 or more" if zero else "a finite number above 0"
    number = check_number(name, value, right)
    if not 0 <= number < math.inf or (number == 0 and not zero):
        raise ValueError(f"{name} must be {right}, got {number:g}")
    return value


def check_number(name: str, value: object, right: str) -> float:
    """Return `value` as a number if it is one; otherwise say what would be `right`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {right}, got {value!r}")
    return float(value)
