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


def short(count: int) -> str:
    """Return a large number in the unit that fits it.

    >>> short(40_812_544), short(162_688)
    ('40.8 M', '162.7 k')
    """
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
