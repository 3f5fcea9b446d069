"""Find runs, read them lazily so that listing a thousand is quick, and follow a running one."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regrow.runs.folder import (
    CHECKPOINT,
    RunFolderError,
    read_divergence,
    read_metrics,
    read_object,
    read_recipe,
    read_result,
    recipe_of_run,
)
from regrow.runs.recipe import Recipe

# Every record of a run that has ended has one of these entries.
_ENDS = {"top1", "diverged"}


@dataclass(frozen=True)
class Run:
    """One run. Its records and its environment are read on first use."""

    folder: Path
    """The run folder; `file:line` for a line in a results file."""
    recipe: Recipe
    result: Mapping[str, Any] | None
    """Content of result.json; None if the run is not finished or diverged."""
    diverged: Mapping[str, Any] | None = None
    """Content of diverged.json, if the loss or the weights became infinite or NaN."""

    @property
    def _record(self) -> Mapping[str, Any]:
        return self.result or self.diverged or {}

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """One record per finished epoch."""
        if "epochs" in self._record:
            return list(self._record["epochs"])
        try:
            return read_metrics(self.folder)
        except FileNotFoundError:
            return []

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Machine and software versions; empty if they were not recorded."""
        if "environment" in self._record:
            return dict(self._record["environment"])
        return read_object(self.folder / "environment.json") or {}

    @property
    def machine(self) -> str:
        """Processor and threads; speeds are comparable only on the same machine."""
        facts = self.environment
        device = facts.get("cuda") if self.recipe.device == "cuda" else facts.get("cpu")
        threads = f", {self.recipe.threads or '?'} threads" if self.recipe.device == "cpu" else ""
        return f"{device or self.recipe.device}{threads}".replace(", 1 threads", ", 1 thread")

    @property
    def images_per_second(self) -> float | None:
        """Median speed over the training epochs; the median ignores warm-up and outliers."""
        speeds = [record["images_per_second"] for record in self.records if record["phase"] == "train"]
        return statistics.median(speeds) if speeds else None


def find_runs(paths: Iterable[Path | str]) -> list[Run]:
    """Return the runs in `paths`, sorted by name. A path is a run folder or contains some at any depth.

    It may also be a JSON Lines file with one result per line; a result with `epochs` has its curves, too.

    >>> runs = find_runs(["runs"])
    """
    folders: dict[Path, Path] = {}
    recorded: list[Run] = []
    for path in map(Path, paths):
        if path.is_file():
            recorded += _recorded(path)
            continue
        if not path.is_dir():
            raise RunFolderError(f"{path} does not exist. Pass run folders, or folders that contain some.")
        found = {folder.resolve(): folder for folder in _run_folders(path)}
        if not found:
            results = f" To read its results, pass {path / '*.jsonl'}" if any(path.glob("*.jsonl")) else ""
            raise RunFolderError(f"there is no run in {path}. A run folder has a recipe.toml.{results}")
        folders = found | folders
    return [read_run(folder) for folder in sorted(folders.values())] + recorded


def read_run(folder: Path | str) -> Run:
    """Return the run in `folder`; of a finished one, only result.json is read."""
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
            raise RunFolderError(f"{origin} is damaged: {error}") from None
    return runs


def _finished(folder: Path, result: Any, origin: str) -> Run:
    if not isinstance(result, dict) or not isinstance(result.get("recipe"), dict) or not result.keys() & _ENDS:
        raise RunFolderError(f"{origin} is not the result of a run: its recipe or its accuracy is missing.")
    if "top1" not in result:
        return Run(folder, recipe_of_run(result["recipe"], origin), None, result)
    return Run(folder, recipe_of_run(result["recipe"], origin), result)


def _run_folders(path: Path) -> Iterator[Path]:
    for folder, inside, files in os.walk(path):
        if "recipe.toml" in files:
            inside[:] = [name for name in inside if name not in ("plots", "tensorboard")]
            yield Path(folder)


class RunProgress:
    """Follows a run through its folder, on whichever machine it is trained, without reading lines twice."""

    def __init__(self, folder: Path) -> None:
        self._metrics, self._checkpoint = folder / "metrics.jsonl", folder / CHECKPOINT
        self._seen = self._size()

    def new_record(self) -> dict[str, Any] | None:
        """Return the record of the last epoch if it ended since the last call."""
        size = self._size()
        if size <= self._seen:
            self._seen = size  # a resumed run removes the lines written after its checkpoint
            return None
        try:
            with self._metrics.open("rb") as file:
                file.seek(self._seen)
                *lines, _ = file.read().split(b"\n")
        except OSError:
            return None  # moved or removed meanwhile
        self._seen += sum(len(line) + 1 for line in lines)
        try:
            record = json.loads(lines[-1])
        except (IndexError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def checkpoint_time(self) -> int:
        """Return a number that changes with every checkpoint; 0 if there is none."""
        try:
            return self._checkpoint.stat().st_mtime_ns
        except OSError:
            return 0

    def _size(self) -> int:
        try:
            return self._metrics.stat().st_size
        except OSError:
            return 0
