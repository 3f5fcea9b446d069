"""Times and large numbers as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a time in the two units that matter.

    >>> duration(11_100)
    '3 h 05 m'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} m"
    return f"{minutes} m {rest:02} s" if minutes else f"{rest} s"


def quantity(number: float) -> str:
    """Return a large number with three digits and its unit.

    >>> quantity(40_812_544)
    '40.8 M'
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:.0f} {unit}"
    return f"{number:.3g}"
