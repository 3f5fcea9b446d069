"""What can be reproduced: an item names its runs and makes a view of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regrow.paper.cells import Cell, Library
from regrow.paper.scales import Scale
from regrow.paper.views import View


def _nothing(scale: Scale, library: Library) -> list[Cell]:
    return []


@dataclass(frozen=True)
class Item:
    """A table, a figure or a theorem of the paper.

    `cells` names the runs that the item needs, given those that are finished: what depends on the outcome of a run (its
    mask, its cost) is named once the run is there, so it is asked again until nothing is lacking. `work` is what is no
    ordinary run, such as a search for a lottery ticket; it goes on where it stopped. `view` trains nothing.
    """

    name: str
    title: str
    view: Callable[[Scale, Library], View]
    cells: Callable[[Scale, Library], list[Cell]] = _nothing
    work: Callable[[Scale, Path], None] | None = None
    cost: str = ""
    """What `work` costs, in words."""
