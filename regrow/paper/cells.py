"""A number of a table and the finished runs that it stands on: one for each seed, found by what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.report.outcomes import Outcome, Summary, identity, outcomes_of
from regrow.report.runs import Run, find_runs
from regrow.train.config import Recipe
from regrow.train.folder import read_recipe


@dataclass(frozen=True)
class Cell:
    """The runs behind one number. `finetuned` asks for what fine-tuning made of them, otherwise training counts."""

    recipes: tuple[Recipe, ...]
    finetuned: bool = False


class Library:
    """Finished runs, from run folders and from files of results, by the recipe that decided their outcome.

    A run with fine-tuning also answers for the same training without it, unless that was run, too. A mask that was
    found by another run is known by that run's recipe, wherever its folder lies.
    """

    def __init__(self, runs: Iterable[Run] = (), paths: Sequence[Path] = ()) -> None:
        self.paths = tuple(paths)
        self._outcomes: dict[tuple[str, bool], Outcome] = {}
        self._diverged: set[tuple[str, bool]] = set()
        # Where the same training was run with and without fine-tuning, the run without it speaks for itself.
        for run in sorted(runs, key=lambda run: run.recipe.finetune_epochs > 0):
            for outcome in outcomes_of(run):
                if outcome.diverged:
                    self._diverged.add((_address(run.recipe, outcome.finetuned), outcome.finetuned))
                if run.result is None:
                    continue
                self._outcomes.setdefault((_address(run.recipe, outcome.finetuned), outcome.finetuned), outcome)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Library:
        """Read the runs in `paths`; missing ones are empty.

        A path is a file of results (JSON lines), a folder of such files, or a folder with run folders at any depth.
        """
        present = [path for path in paths if path.exists()]
        filled = [path for path in present if path.is_file() or any(path.rglob("recipe.toml"))]
        filled += [
            file for path in present if not (path / "recipe.toml").exists() for file in sorted(path.glob("*.jsonl"))
        ]
        return cls(find_runs(filled) if filled else (), present)

    def outcome(self, recipe: Recipe, *, finetuned: bool = False) -> Outcome | None:
        """Return what `recipe` came to, or None where it was not run to its end."""
        if not self._outcomes:
            return None
        return self._outcomes.get((_address(recipe, finetuned), finetuned))

    def diverged(self, cell: Cell) -> int:
        """Return how many runs of `cell` diverged and have not been run to their end since."""
        addresses = [(_address(recipe, cell.finetuned), cell.finetuned) for recipe in cell.recipes if self._diverged]
        return sum(address in self._diverged and address not in self._outcomes for address in addresses)

    def outcomes(self, cell: Cell) -> list[Outcome]:
        """Return what is known of the runs of `cell`."""
        found = (self.outcome(recipe, finetuned=cell.finetuned) for recipe in cell.recipes)
        return [outcome for outcome in found if outcome is not None]

    def summary(self, cell: Cell, quantity: str = "top1") -> Summary | None:
        """Summarise a number of the final epoch over the seeds of `cell`, or None where no run is finished."""
        finals: list[Mapping[str, Any]] = [outcome.final for outcome in self.outcomes(cell)]
        values = [final[quantity] for final in finals if final.get(quantity) is not None]
        return Summary.of(values) if values else None

    def share(self, cell: Cell, kept: str, whole: str) -> float | None:
        """Return what the models of `cell` have kept of a quantity, such as `macs_kept` of `macs`, on average."""
        left, everything = self.summary(cell, kept), self.summary(cell, whole)
        return None if left is None or everything is None else left.mean / everything.mean

    def varying(self, recipe: Recipe, field: str, *, finetuned: bool = False) -> dict[Any, Outcome]:
        """Return what runs that differ from `recipe` in `field` alone came to, by their value of it."""
        blank = {field: getattr(recipe, field)}
        wanted = _address(recipe, finetuned)
        return {
            getattr(outcome.run.recipe, field): outcome
            for outcome in self._outcomes.values()
            if outcome.finetuned == finetuned and _address(outcome.run.recipe.changed(**blank), finetuned) == wanted
        }

    def runs(self, cells: Iterable[Cell]) -> list[Run]:
        """Return the finished runs behind `cells`, each once."""
        runs = {id(outcome.run): outcome.run for cell in cells for outcome in self.outcomes(cell)}
        return list(runs.values())

    def lacking(self, cells: Iterable[Cell]) -> list[Recipe]:
        """Return the recipes that have to be run, each once; a fine-tuned run covers the one without fine-tuning.

        Those that diverged would diverge again.
        """
        wanted: dict[tuple[str, bool], Recipe] = {}
        for cell in sorted(cells, key=lambda cell: not cell.finetuned):
            for recipe in cell.recipes:
                address = _address(recipe, cell.finetuned), cell.finetuned
                if address in self._outcomes or address in self._diverged:
                    continue
                if address not in wanted:
                    wanted[address] = recipe
                    wanted.setdefault((_address(recipe, False), False), recipe)
        return list({recipe.key(): recipe for recipe in wanted.values()}.values())

    def file(self, name: str) -> Path | None:
        """Return the newest file of that name below the paths, such as theorems.jsonl."""
        found = [file for path in self.paths if path.is_dir() for file in path.rglob(name)]
        found += [path for path in self.paths if path.is_file() and path.name == name]
        return max(found, key=lambda file: file.stat().st_mtime, default=None)


def mask_name(recipe: Recipe) -> str:
    """Return the name under which the mask that `recipe` finds is known, with fine-tuning or without."""
    training = identity(recipe, finetuned=False)
    return f"{training.name()}-{training.key()[:8]}"


def portable(recipe: Recipe) -> Recipe:
    """Return the recipe with the folder that its masks come from replaced by the name of these masks."""
    if recipe.masks is None or not (Path(recipe.masks) / "recipe.toml").is_file():
        return recipe
    return recipe.changed(masks=mask_name(read_recipe(recipe.masks)))


def _address(recipe: Recipe, finetuned: bool) -> str:
    return identity(portable(recipe), finetuned=finetuned).key()
