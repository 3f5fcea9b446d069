"""A sweep as a TOML file: a recipe, what is changed in it for all runs, and lists whose combinations are the runs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regrow.methods.registry import built_in_name, find_method
from regrow.text import did_you_mean
from regrow.train.catalog import load_recipe, recipe_names
from regrow.train.config import Recipe, RecipeError, read_toml

_FIELDS = {field.name: field.default for field in dataclasses.fields(Recipe)}


def read_sweep(path: Path | str) -> list[Recipe]:
    """Return the recipes that the sweep at `path` is made of, each once, in the order of the file.

    `recipe` names the recipe to start from (one of the package's, or a file beside the sweep). Other fields at the top
    hold for all runs. `[grid]` has lists whose values are combined; `[[grid]]`, given several times, adds the runs up.

    >>> [recipe.name() for recipe in read_sweep("sweep.toml")]  # doctest: +SKIP
    ['digits-small-dpf90-s0', 'digits-small-dpf90-s1']
    """
    path = Path(path)
    content = read_toml(path)
    _check_names(content, {"recipe", "grid", *_FIELDS}, str(path))
    base = _base(content.pop("recipe", None), path)
    grids = content.pop("grid", {})
    fixed = Recipe.of({**vars(base), **content}, str(path))
    recipes = [recipe for grid in _tables(grids, path) for recipe in _combinations(fixed, grid, path)]
    _check_methods(recipes, path)
    return list(dict.fromkeys(recipes))


def _base(name: Any, path: Path) -> Recipe:
    if name is None:
        return Recipe()
    if not isinstance(name, str):
        raise RecipeError(f"{path}: recipe must be the name of a recipe or a file, got {name!r}")
    beside = path.parent / name
    # The package's own names come first: a file called like one of them is hardly meant.
    return load_recipe(str(beside) if beside.is_file() and name not in recipe_names() else name)


def _tables(grids: Any, path: Path) -> list[dict[str, Any]]:
    tables = grids if isinstance(grids, list) else [grids]
    for grid in tables:
        if not isinstance(grid, dict):
            raise RecipeError(f"{path}: grid must be a table of lists, such as [grid] and seed = [0, 1], got {grid!r}")
        _check_names(grid, set(_FIELDS), f"[grid] in {path}")
    return tables


def _combinations(fixed: Recipe, grid: Mapping[str, Any], path: Path) -> Iterator[Recipe]:
    """Yield a recipe for each combination; the last field changes fastest."""
    choices = {name: _choices(name, value, path) for name, value in grid.items()}
    fields = vars(fixed)
    for values in itertools.product(*choices.values()):
        point = dict(zip(choices, values, strict=True))
        try:
            yield Recipe.of({**fields, **point})
        except RecipeError as error:
            raise RecipeError(f"{path}: {error} (in {_text(point)})") from None


def _choices(name: str, value: Any, path: Path) -> list[Any]:
    """Return the values that a field goes through; a field that is itself a list takes lists of lists."""
    if isinstance(_FIELDS[name], tuple) and isinstance(value, list) and not any(isinstance(v, list) for v in value):
        return [value]
    choices = value if isinstance(value, list) else [value]
    if not choices:
        raise RecipeError(f"{path}: {name} has no values, so there is nothing to run. Give at least one.")
    return choices


def _check_methods(recipes: list[Recipe], path: Path) -> None:
    """Find a misspelt method before anything is trained; torch is imported for what is not the package's own only."""
    for name in dict.fromkeys(recipe.method for recipe in recipes):
        if built_in_name(name) is None:
            try:
                find_method(name)
            except (TypeError, ValueError) as error:
                raise RecipeError(f"{path}: {error}") from None


def _text(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in point.items())


def _check_names(table: Mapping[str, Any], known: set[str], origin: str) -> None:
    for name in table:
        if name not in known:
            hint = did_you_mean(name, known, cutoff=0.5) or f" There are {', '.join(sorted(known))}."
            raise RecipeError(f"{origin} has no field {name!r}.{hint}")
