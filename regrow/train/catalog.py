"""The recipes that come with the package, by name."""

from __future__ import annotations

from pathlib import Path

from regrow.text import did_you_mean
from regrow.train.config import Recipe, RecipeError

_FOLDER = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the recipes in the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def describe(name: str) -> str:
    """Return what the recipe's first line says about it."""
    first, _, _ = (_FOLDER / f"{name}.toml").read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("#").strip()


def load_recipe(name: str) -> Recipe:
    """Return a recipe by the name under which the package has it, or by the path of a TOML file.

    >>> load_recipe("cifar-resnet20").epochs
    300
    """
    if (path := _FOLDER / f"{name}.toml").is_file() and "/" not in name:
        return Recipe.read(path)
    if Path(name).is_file():
        return Recipe.read(name)
    known = recipe_names()
    hint = did_you_mean(name, known)
    raise RecipeError(f"{name!r} is neither a file nor a recipe.{hint} The recipes are {', '.join(known)}.")
