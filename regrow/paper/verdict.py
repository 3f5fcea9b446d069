"""Whether one method is ahead of another, seed by seed: what may be said from a few trainings, and what may not."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from regrow.paper.cells import Cell, Library
from regrow.runs.outcomes import Outcome

Verdict = Literal["ahead", "behind", "level", "two machines", "other size", "other mask", "one seed", "not run"]

MACHINES = 1.2
"""By how many points a training ended apart on two machines, at most: six on digits were run on both.

Another processor rounds differently, and a training that rounds differently ends elsewhere, as if by another seed.
"""
SIZE = 0.1
"""By how much larger a model may be than another and still be compared with it in accuracy."""


@dataclass(frozen=True)
class Gap:
    """The accuracy of one run minus that of another with the same seed, and what else is different between the two."""

    points: float
    machines: bool = False
    sizes: bool = False
    masks: bool = False

    @property
    def decides(self) -> bool:
        """Whether the gap is more than what two machines alone could make of it."""
        return not self.machines or round(abs(self.points), 6) > MACHINES  # 97.8 - 96.6 is a little more than 1.2

    def __str__(self) -> str:
        """Return the gap, with a mark at what was measured on two machines or with the mask of another run."""
        return f"{self.points:+.2f}{'†' if self.machines else ''}{'‡' if self.masks else ''}"


@dataclass(frozen=True)
class Difference:
    """The accuracy of one method minus that of another, for each seed that both have."""

    by_seed: tuple[Gap, ...]

    @property
    def verdict(self) -> Verdict:
        """Ahead or behind only where every one of at least two seeds says so, about models that may be compared."""
        if not self.by_seed:
            return "not run"
        if any(gap.masks for gap in self.by_seed):
            return "other mask"
        if any(gap.sizes for gap in self.by_seed):
            return "other size"
        if len(self.by_seed) == 1:
            return "one seed"
        higher, lower = (all(sign * gap.points > 0 for gap in self.by_seed) for sign in (1, -1))
        if not higher and not lower:
            return "level"
        if not all(gap.decides for gap in self.by_seed):
            return "two machines"
        return "ahead" if higher else "behind"

    @property
    def mean(self) -> float:
        """The mean over seeds; 0 where there is none."""
        return statistics.fmean(gap.points for gap in self.by_seed) if self.by_seed else 0.0

    def __str__(self) -> str:
        """Return the mean difference and the seeds behind it."""
        if not self.by_seed:
            return "not run"
        if len(self.by_seed) == 1:
            return f"{self.by_seed[0]} (one seed)"
        return f"{self.mean:+.2f} ({', '.join(map(str, self.by_seed))})"


def difference(library: Library, ours: Cell, theirs: Cell) -> Difference:
    """Compare two cells run by run: the first recipe of one with the first of the other, and so on."""
    found = []
    for mine, other in zip(ours.recipes, theirs.recipes, strict=False):
        a, b = library.outcome(mine, finetuned=ours.finetuned), library.outcome(other, finetuned=theirs.finetuned)
        if a is not None and b is not None:
            found.append(_gap(a, b))
    return Difference(tuple(found))


def same_mask(found: Outcome, again: Outcome) -> bool:
    """Return whether a retrained mask can be the one that `found` ended with; a run made twice has two masks."""
    return all(found.final.get(count) == again.final.get(count) for count in ("nonzeros", "macs_kept"))


def _gap(mine: Outcome, other: Outcome) -> Gap:
    retrained = [outcome for outcome in (mine, other) if outcome.recipe.masks is not None]
    return Gap(
        points=mine.final["top1"] - other.final["top1"],
        machines=mine.run.machine != other.run.machine,
        sizes=_unlike(mine, other),
        masks=len(retrained) == 1 and not same_mask(mine, other),
    )


def _unlike(mine: Outcome, other: Outcome) -> bool:
    """Return whether the models differ too much in size: in parameters, and where filters are pruned in MACs.

    A share of the weights fixes the parameters, whatever the MACs; a share of the filters fixes neither.
    """
    counts = ["nonzeros"]
    if mine.recipe.prunes_filters or other.recipe.prunes_filters:
        counts.append("macs_kept")
    sizes = [sorted(outcome.final[count] for outcome in (mine, other)) for count in counts]
    return any(larger > (1 + SIZE) * smaller for smaller, larger in sizes)
