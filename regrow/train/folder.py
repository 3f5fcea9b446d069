"""What a run folder says about its run, read without importing torch: thousands are listed in a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regrow.train.config import Recipe
from regrow.train.files import FolderError

DIVERGED = "diverged.json"
"""The file that a run leaves in its folder when its loss or its weights are no longer finite."""


def read_recipe(folder: Path | str) -> Recipe:
    """Return the recipe of the run in `folder`."""
    path = Path(folder) / "recipe.toml"
    if not path.is_file():
        raise FolderError(f"{folder} is not a run: it has no recipe.toml.")
    return Recipe.read(path)


def read_result(folder: Path | str) -> dict[str, Any] | None:
    """Return the result of the run in `folder`, or None while it is not finished."""
    return _read(Path(folder) / "result.json")


def read_divergence(folder: Path | str) -> dict[str, Any] | None:
    """Return how the run in `folder` diverged (see `diverged`), or None if it has not."""
    return _read(Path(folder) / DIVERGED)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        result = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path} is damaged: {error}") from None
    if not isinstance(result, dict):
        raise FolderError(f"{path} is damaged: it holds a {type(result).__name__} and no result")
    return result
