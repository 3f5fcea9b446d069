"""Numbers as people read them, the same in tables, tooltips and descriptions."""

from __future__ import annotations

from regrow.report.outcomes import Summary


def plus_minus(summary: Summary | None, *, digits: int = 2, scale: float = 1.0) -> str:
    """Return mean ± standard deviation; the mean alone where there is one seed, a dash where there is nothing.

    >>> plus_minus(Summary(69.5, 0.2, 3))
    '69.50 ± 0.20'
    """
    if summary is None:
        return "–"
    mean = f"{scale * summary.mean:,.{digits}f}"
    return mean if summary.std is None else f"{mean} ± {scale * summary.std:,.{digits}f}"


def seeds(n: int) -> str:
    """Return how many seeds a number stands on."""
    return "1 seed" if n == 1 else f"{n} seeds"


def sentence(items: list[str]) -> str:
    """Return the items as the end of a sentence."""
    return f"{'; '.join(items)}." if items else "nothing yet."
