"""Read a sweep file (TOML): a recipe, fields changed for all runs, and lists of values to combine."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regrow.methods.registry import built_in_name, find_method
from regrow.runs.recipe import Recipe, RecipeError, load_recipe, read_toml, recipe_names
from regrow.text import did_you_mean

# A few lists in a small file can mean billions of runs; a year has half a million minutes.
_MOST_RUNS = 100_000

_FIELDS = {field.name: field.default for field in dataclasses.fields(Recipe)}


def read_sweep(path: Path | str) -> list[Recipe]:
    """Return the recipes of the sweep at `path`, without duplicates, in the order of the file.

    `recipe` names the recipe to start from (a built-in one, or a file in the same folder). Other top-level fields hold
    for all runs. `[grid]` has lists whose values are combined. Several `[[grid]]` tables add up their runs.

    >>> [recipe.name() for recipe in read_sweep("sweep.toml")]  # doctest: +SKIP
    ['digits-small-dpf90-s0', 'digits-small-dpf90-s1']
    """
    path = Path(path)
    content = read_toml(path)
    _check_names(content, {"recipe", "grid", *_FIELDS}, str(path))
    base = _base(content.pop("recipe", None), path)
    grids = content.pop("grid", {})
    fixed = Recipe.of({**vars(base), **content}, str(path))
    choices = [{name: _choices(name, value, path) for name, value in grid.items()} for grid in _tables(grids, path)]
    if (runs := sum(math.prod(map(len, each.values())) for each in choices)) > _MOST_RUNS:
        raise RecipeError(f"{path} has {runs:,} runs; the limit is {_MOST_RUNS:,}. Split it into several sweeps.")
    recipes = [recipe for each in choices for recipe in _combinations(fixed, each, path)]
    _check_methods(recipes, path)
    return list(dict.fromkeys(recipes))


def _base(name: Any, path: Path) -> Recipe:
    if name is None:
        return Recipe()
    if not isinstance(name, str):
        raise RecipeError(f"{path}: recipe must be the name of a built-in recipe or a file, got {name!r}")
    beside = path.parent / name
    # A built-in recipe takes precedence over a file with the same name.
    return load_recipe(str(beside) if beside.is_file() and name not in recipe_names() else name)


def _tables(grids: Any, path: Path) -> list[dict[str, Any]]:
    tables = grids if isinstance(grids, list) else [grids]
    for grid in tables:
        if not isinstance(grid, dict):
            raise RecipeError(f"{path}: grid must be a table of lists, such as [grid] and seed = [0, 1], got {grid!r}")
        _check_names(grid, set(_FIELDS), f"[grid] in {path}")
    return tables


def _combinations(fixed: Recipe, choices: Mapping[str, list[Any]], path: Path) -> Iterator[Recipe]:
    """Yield a recipe for each combination; the last field changes fastest."""
    fields = vars(fixed)
    for values in itertools.product(*choices.values()):
        point = dict(zip(choices, values, strict=True))
        try:
            yield Recipe.of({**fields, **point})
        except RecipeError as error:
            raise RecipeError(f"{path}: {error} (in {_text(point)})") from None


def _choices(name: str, value: Any, path: Path) -> list[Any]:
    """Return the values of a field; a field that is itself a list takes a list of lists."""
    if isinstance(_FIELDS[name], tuple) and isinstance(value, list) and not any(isinstance(v, list) for v in value):
        return [value]
    choices = value if isinstance(value, list) else [value]
    if not choices:
        raise RecipeError(f"{path}: {name} is an empty list, so there is nothing to run. Give at least one value.")
    return choices


def _check_methods(recipes: list[Recipe], path: Path) -> None:
    """Find a misspelled method before anything is trained; only methods of other packages need torch for this."""
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
