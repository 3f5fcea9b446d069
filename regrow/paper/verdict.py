"""Whether one method is ahead of another, seed by seed: what may be said from a few trainings, and what may not."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from regrow.paper.cells import Cell, Library

Verdict = Literal["ahead", "behind", "level", "one seed", "not run"]


@dataclass(frozen=True)
class Difference:
    """The accuracy of one method minus that of another, for each seed that both have."""

    by_seed: tuple[float, ...]

    @property
    def verdict(self) -> Verdict:
        """Ahead or behind only where every one of at least two seeds says so."""
        if not self.by_seed:
            return "not run"
        if len(self.by_seed) == 1:
            return "one seed"
        if all(each > 0 for each in self.by_seed):
            return "ahead"
        return "behind" if all(each < 0 for each in self.by_seed) else "level"

    def __str__(self) -> str:
        """Return the mean difference and the seeds behind it."""
        if not self.by_seed:
            return "not run"
        seeds = ", ".join(f"{each:+.2f}" for each in self.by_seed)
        mean = f"{statistics.fmean(self.by_seed):+.2f}"
        return f"{mean} (one seed)" if len(self.by_seed) == 1 else f"{mean} ({seeds})"


def difference(library: Library, ours: Cell, theirs: Cell) -> Difference:
    """Compare two cells run by run: the first recipe of one with the first of the other, and so on."""
    found = []
    for mine, other in zip(ours.recipes, theirs.recipes, strict=False):
        a, b = library.outcome(mine, finetuned=ours.finetuned), library.outcome(other, finetuned=theirs.finetuned)
        if a is not None and b is not None:
            found.append(a.final["top1"] - b.final["top1"])
    return Difference(tuple(found))
