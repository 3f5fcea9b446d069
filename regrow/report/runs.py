"""Finds runs and reads no more of them than is asked for, so that a thousand are listed in a moment."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regrow.train.config import Recipe
from regrow.train.files import FolderError
from regrow.train.folder import read_divergence, read_recipe, read_result
from regrow.train.metrics import read_metrics

# One of them is in the record of a run that has ended.
_ENDS = {"top1", "diverged"}


@dataclass(frozen=True)
class Run:
    """One run. The records of its epochs and its environment are read when they are first needed."""

    folder: Path
    """Where it is; of a line in a file of results, `file:line`."""
    recipe: Recipe
    result: Mapping[str, Any] | None
    """What result.json holds; None while the run is not finished, and if it diverged."""
    diverged: Mapping[str, Any] | None = None
    """What diverged.json holds, if the loss or the weights became infinite or NaN."""

    @property
    def _record(self) -> Mapping[str, Any]:
        return self.result or self.diverged or {}

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """One record per epoch that has ended; empty where none has."""
        if "epochs" in self._record:
            return list(self._record["epochs"])
        try:
            return read_metrics(self.folder)
        except FileNotFoundError:
            return []

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The machine and the software; empty where nothing was recorded."""
        if "environment" in self._record:
            return dict(self._record["environment"])
        path = self.folder / "environment.json"
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise FolderError(f"{path} is damaged: {error}") from None
        return found

    @property
    def machine(self) -> str:
        """What the run ran on: only speeds of one machine are comparable."""
        facts = self.environment
        device = facts.get("cuda") if self.recipe.device == "cuda" else facts.get("cpu")
        threads = f", {self.recipe.threads or '?'} threads" if self.recipe.device == "cpu" else ""
        return f"{device or self.recipe.device}{threads}".replace(", 1 threads", ", 1 thread")

    @property
    def images_per_second(self) -> float | None:
        """The median speed of the epochs of training: the first one warms up, others may be disturbed."""
        speeds = [record["images_per_second"] for record in self.records if record["phase"] == "train"]
        return statistics.median(speeds) if speeds else None


def find_runs(paths: Iterable[Path | str]) -> list[Run]:
    """Return the runs that `paths` are, or contain at any depth, in the order of their names.

    A file of JSON lines holds results of runs that ended, one on each line, with their curves where it has `epochs`.

    >>> runs = find_runs(["runs"])
    """
    folders: dict[Path, Path] = {}
    recorded: list[Run] = []
    for path in map(Path, paths):
        if path.is_file():
            recorded += _recorded(path)
            continue
        if not path.is_dir():
            raise FolderError(f"{path} does not exist. Give folders of runs, or folders that contain some.")
        found = {folder.resolve(): folder for folder in _run_folders(path)}
        if not found:
            raise FolderError(f"there is no run in {path}: a run is a folder with a recipe.toml.")
        folders = found | folders
    return [read_run(folder) for folder in sorted(folders.values())] + recorded


def read_run(folder: Path | str) -> Run:
    """Return the run in `folder`; a finished one is known from result.json alone."""
    folder = Path(folder)
    result = read_result(folder)
    if result is None:
        return Run(folder, read_recipe(folder), None, read_divergence(folder))
    return _finished(folder, result, str(folder / "result.json"))


def _recorded(path: Path) -> list[Run]:
    runs = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        origin = f"{path}, line {number}"
        try:
            runs.append(_finished(Path(f"{path}:{number}"), json.loads(line), origin))
        except json.JSONDecodeError as error:
            raise FolderError(f"{origin} is damaged: {error}") from None
    return runs


def _finished(folder: Path, result: Any, origin: str) -> Run:
    if not isinstance(result, dict) or not isinstance(result.get("recipe"), dict) or not result.keys() & _ENDS:
        raise FolderError(f"{origin} is not the result of a run: it lacks a recipe or an accuracy.")
    if "top1" not in result:
        return Run(folder, Recipe.of(result["recipe"], origin), None, result)
    return Run(folder, Recipe.of(result["recipe"], origin), result)


def _run_folders(path: Path) -> Iterator[Path]:
    for folder, inside, files in os.walk(path):
        if "recipe.toml" in files:
            inside.clear()
            yield Path(folder)
