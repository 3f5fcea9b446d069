"""What the table in the docs says about a method beyond its class's own attributes and options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """A method in a line; `budget` where it is more than the default of `scope`."""

    paper: str
    when: str
    score: str
    cost: str
    """Of one update of the mask, besides writing it; n are the targeted weights."""
    budget: str = ""
