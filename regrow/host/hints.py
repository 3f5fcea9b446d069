"""Names as people write them: what is the same name, and for one that nobody knows, which was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from itertools import takewhile


def plain(name: str) -> str:
    """The name without what makes no difference: SparseMomentum, sparse-momentum and sparse_momentum are one."""
    return name.lower().replace("-", "").replace("_", "")


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.4) -> str | None:
    """The known name that is most like `name`, if their likeness is at least `cutoff` (0 to 1).

    Case doesn't count, letters that are swapped count little, and of names that are equally alike the one that starts
    alike is meant: resnet2O is resnet20 rather than resnet32.
    """
    ranked = max(((*_likeness(name.lower(), each.lower()), each) for each in known), default=None)
    return ranked[-1] if ranked and ranked[0] >= cutoff else None


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.4) -> str:
    """A sentence with the nearest name, to be put behind another sentence; empty if nothing is near."""
    found = nearest(name, known, cutoff=cutoff)
    return "" if found is None else f" Did you mean {found!r}?"


def _likeness(name: str, known: str) -> tuple[float, int]:
    swapped = sorted(name) == sorted(known)
    start = takewhile(lambda letters: letters[0] == letters[1], zip(name, known, strict=False))
    return 1.0 if swapped else SequenceMatcher(None, known, name).ratio(), len(list(start))
