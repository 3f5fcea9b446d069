"""Find the finished runs behind each table cell by their recipes, and compare methods seed by seed."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from regrow.runs.find import Run, find_runs
from regrow.runs.folder import read_recipe
from regrow.runs.outcomes import Outcome, Summary, identity, outcomes_of
from regrow.runs.recipe import Recipe


@dataclass(frozen=True)
class Cell:
    """The runs behind one number, one per seed; `finetuned` selects their result after fine-tuning."""

    recipes: tuple[Recipe, ...]
    finetuned: bool = False


Address = tuple[str, bool]
"""Key of a recipe, and whether the result is that after fine-tuning."""


class ResultStore:
    """Finished runs from run folders and result files, found by their recipes.

    A run with fine-tuning also provides the result of the same training without it, unless there is a run without it.
    A mask or initial weights from another run are identified by that run's recipe, wherever its folder is.
    """

    def __init__(self, runs: Iterable[Run] = (), paths: Sequence[Path] = ()) -> None:
        self.paths = tuple(paths)
        self._outcomes: dict[Address, Outcome] = {}
        self._diverged: set[Address] = set()
        # For the result of training, prefer a run without fine-tuning.
        for run in sorted(runs, key=lambda run: run.recipe.finetune_epochs > 0):
            for outcome in outcomes_of(run):
                if outcome.diverged:
                    self._diverged.add(_address(run.recipe, outcome.finetuned))
                if run.result is not None:
                    self._outcomes.setdefault(_address(run.recipe, outcome.finetuned), outcome)

    @classmethod
    def read(cls, paths: Iterable[Path], *, beside: Iterable[Path] = ()) -> ResultStore:
        """Read the runs in `paths`; missing paths are skipped. Other files are found in them and in folders `beside`.

        A path is a result file (JSON Lines), a folder of such files, or a folder with run folders at any depth.
        """
        present = [path for path in paths if path.exists()]
        filled = [path for path in present if path.is_file() or any(path.rglob("recipe.toml"))]
        filled += [
            file for path in present if not (path / "recipe.toml").exists() for file in sorted(path.glob("*.jsonl"))
        ]
        return cls(find_runs(filled) if filled else (), [*present, *beside])

    def outcome(self, recipe: Recipe, *, finetuned: bool = False) -> Outcome | None:
        """Return the outcome of `recipe`, or None if there is no finished run."""
        return self._outcomes.get(_address(recipe, finetuned)) if self._outcomes else None

    def diverged(self, cell: Cell) -> int:
        """Return how many runs of `cell` diverged and have not been run to their end since."""
        addresses = [_address(recipe, cell.finetuned) for recipe in cell.recipes if self._diverged]
        return sum(address in self._diverged and address not in self._outcomes for address in addresses)

    def outcomes(self, cell: Cell) -> list[Outcome]:
        """Return the outcomes of the finished runs of `cell`."""
        found = (self.outcome(recipe, finetuned=cell.finetuned) for recipe in cell.recipes)
        return [outcome for outcome in found if outcome is not None]

    def summary(self, cell: Cell, quantity: str = "top1") -> Summary | None:
        """Summarize a number of the last epoch over the seeds of `cell`; None if no run is finished."""
        finals: list[Mapping[str, Any]] = [outcome.final for outcome in self.outcomes(cell)]
        values = [final[quantity] for final in finals if final.get(quantity) is not None]
        return Summary.of(values) if values else None

    def fraction(self, cell: Cell, kept: str, whole: str) -> float | None:
        """Return the mean fraction of a quantity that the models of `cell` keep, such as `macs_kept` of `macs`."""
        left, everything = self.summary(cell, kept), self.summary(cell, whole)
        return None if left is None or everything is None else left.mean / everything.mean

    def varying(self, recipe: Recipe, field: str, *, finetuned: bool = False) -> dict[Any, Outcome]:
        """Return the outcomes of runs that differ from `recipe` only in `field`, by its value."""
        blank = {field: getattr(recipe, field)}
        wanted = _address(recipe, finetuned)
        return {
            getattr(outcome.run.recipe, field): outcome
            for outcome in self._outcomes.values()
            if _address(outcome.run.recipe.changed(**blank), outcome.finetuned) == wanted
        }

    def runs(self, cells: Iterable[Cell]) -> list[Run]:
        """Return the finished runs behind `cells`, without duplicates."""
        runs = {id(outcome.run): outcome.run for cell in cells for outcome in self.outcomes(cell)}
        return list(runs.values())

    def missing(self, cells: Iterable[Cell]) -> list[Recipe]:
        """Return the recipes to run, without duplicates; a fine-tuned run covers the one without fine-tuning.

        Diverged runs are left out, because they would diverge again.
        """
        wanted: dict[Address, Recipe] = {}
        for cell in sorted(cells, key=lambda cell: not cell.finetuned):
            for recipe in cell.recipes:
                address = _address(recipe, cell.finetuned)
                if address in self._outcomes or address in self._diverged:
                    continue
                if address not in wanted:
                    wanted[address] = recipe
                    wanted.setdefault(_address(recipe, False), recipe)
        return list({recipe.key(): recipe for recipe in wanted.values()}.values())

    def file(self, name: str) -> Path | None:
        """Return the newest file with this name below the paths, such as theorems.jsonl."""
        found = [file for path in self.paths if path.is_dir() for file in path.rglob(name)]
        found += [path for path in self.paths if path.is_file() and path.name == name]
        return max(found, key=lambda file: file.stat().st_mtime, default=None)

    def round_alike(self, one: Run, other: Run) -> bool:
        """Return whether the machines of two runs of a network give the same numbers."""
        if one is other or one.machine == other.machine:
            return True
        comparable = all(
            run.recipe.device == "cpu" and run.recipe.threads == one.recipe.threads for run in (one, other)
        )
        return comparable and self.alike(one, cpus(one) | cpus(other))

    def alike(self, run: Run, used: Iterable[str]) -> bool:
        """Return whether trainings like `run` were found to give the same numbers on any two of these CPUs."""
        recipe = run.recipe
        pairs = itertools.combinations(sorted(used), 2)
        return all((frozenset(pair), recipe.model, recipe.threads) in self._alike for pair in pairs)

    @cached_property
    def _alike(self) -> set[tuple[frozenset[str], str, int | None]]:
        """Pairs of CPUs on which the same training gave the same numbers, with its network and threads."""
        path = self.file("again.jsonl")
        lines = path.read_text(encoding="utf-8").splitlines() if path else []
        rows = [json.loads(line) for line in lines]
        return {(frozenset(row["cpus"]), row["model"], row["threads"]) for row in rows if row["same"]}


def cpus(run: Run) -> set[str]:
    """Return the CPU models of a run, of which one that was continued elsewhere has several."""
    moved = (run.result or {}).get("machines", ())
    return {each["cpu"] for each in moved} or {run.environment.get("cpu") or run.machine}


def mask_name(recipe: Recipe) -> str:
    """Return the name of the mask that `recipe` finds; fine-tuning does not change it."""
    return identity(recipe, finetuned=False).folder_name()


def weights_name(recipe: Recipe) -> str:
    """Return the name of the weights that `recipe` trains, for the field `init` of other recipes."""
    recipe = portable(recipe)
    return identity(recipe, finetuned=recipe.finetune_epochs > 0).folder_name()


def portable(recipe: Recipe) -> Recipe:
    """Return the recipe with folders in `masks` and `init` replaced by the names of mask and weights."""
    if recipe.masks is not None and (Path(recipe.masks) / "recipe.toml").is_file():
        recipe = recipe.changed(masks=mask_name(read_recipe(recipe.masks)))
    if recipe.init is not None and (Path(recipe.init) / "recipe.toml").is_file():
        recipe = recipe.changed(init=weights_name(read_recipe(recipe.init)))
    return recipe


def _address(recipe: Recipe, finetuned: bool) -> Address:
    return identity(portable(recipe), finetuned=finetuned).key(), finetuned


Verdict = Literal["ahead", "behind", "level", "two machines", "other size", "other mask", "one seed", "not run"]

MACHINES = 1.2
"""Largest difference in points between the same training on two machines (six trainings on digits).

Another processor rounds differently, which changes the result like another seed.
"""
SIZE = 0.1
"""Relative difference in size up to which accuracies are compared."""


@dataclass(frozen=True)
class Gap:
    """Accuracy of one run minus that of another with the same seed, and other differences between the two."""

    points: float
    """Infinite if one of the two diverged, NaN if both did."""
    machines: bool = False
    sizes: bool = False
    masks: bool = False

    @property
    def decides(self) -> bool:
        """Whether the gap is larger than the effect of two machines."""
        return not self.machines or round(abs(self.points), 6) > MACHINES  # 97.8 - 96.6 is a little more than 1.2

    def __str__(self) -> str:
        """Return the gap, marked if it was measured on two machines or with the mask of another run."""
        if not math.isfinite(self.points):
            return "both ★" if math.isnan(self.points) else "★" if self.points > 0 else "−★"
        return f"{self.points:+.2f}{'†' if self.machines else ''}{'‡' if self.masks else ''}"


@dataclass(frozen=True)
class Difference:
    """Accuracy of one method minus that of another, for each common seed."""

    by_seed: tuple[Gap, ...]

    @property
    def verdict(self) -> Verdict:
        """Ahead or behind only if all of at least two seeds agree and the models are comparable."""
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
        """Mean over seeds; 0 without seeds, infinite or NaN if a run diverged."""
        return sum(gap.points for gap in self.by_seed) / len(self.by_seed) if self.by_seed else 0.0

    def __str__(self) -> str:
        """Return the mean difference and the seeds behind it."""
        if not self.by_seed:
            return "not run"
        if len(self.by_seed) == 1:
            return f"{self.by_seed[0]} (one seed)"
        seeds = ", ".join(map(str, self.by_seed))
        return f"{self.mean:+.2f} ({seeds})" if math.isfinite(self.mean) else seeds


def difference(store: ResultStore, ours: Cell, theirs: Cell) -> Difference:
    """Compare two cells seed by seed."""
    found = []
    for mine, other in zip(ours.recipes, theirs.recipes, strict=False):
        a, b = store.outcome(mine, finetuned=ours.finetuned), store.outcome(other, finetuned=theirs.finetuned)
        if a is not None and b is not None:
            found.append(_gap(store, a, b))
            continue
        left, right = _points(store, mine, ours, a), _points(store, other, theirs, b)
        if left is not None and right is not None:
            found.append(Gap(left - right))
    return Difference(tuple(found))


def _points(store: ResultStore, recipe: Recipe, cell: Cell, outcome: Outcome | None) -> float | None:
    """Return the accuracy of a run, minus infinity if it diverged; None if it was not run."""
    if outcome is not None:
        return float(outcome.final["top1"])
    return -math.inf if store.diverged(Cell((recipe,), cell.finetuned)) else None


def same_mask(found: Outcome, again: Outcome) -> bool:
    """Return whether a retrained mask can be the final mask of `found`; repeating a run may give another mask."""
    return all(found.final.get(count) == again.final.get(count) for count in ("nonzeros", "macs_kept"))


def _gap(store: ResultStore, mine: Outcome, other: Outcome) -> Gap:
    retrained = [outcome for outcome in (mine, other) if outcome.recipe.masks is not None]
    return Gap(
        points=mine.final["top1"] - other.final["top1"],
        machines=not store.round_alike(mine.run, other.run),
        sizes=_unlike(mine, other),
        masks=len(retrained) == 1 and not same_mask(mine, other),
    )


def _unlike(mine: Outcome, other: Outcome) -> bool:
    """Return whether the models differ too much in parameters or, if filters are pruned, in MACs.

    A fraction of the weights fixes the parameters but not the MACs; a fraction of the filters fixes neither.
    """
    counts = ["nonzeros"]
    if mine.recipe.prunes_filters or other.recipe.prunes_filters:
        counts.append("macs_kept")
    sizes = [sorted(outcome.final[count] for outcome in (mine, other)) for count in counts]
    return any(larger > (1 + SIZE) * smaller for smaller, larger in sizes)
