"""One run of a sweep: what it trains, where its folder is, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from regrow.train.config import Recipe
from regrow.train.files import FolderError
from regrow.train.folder import read_result


@dataclass(frozen=True)
class Job:
    """A recipe and the folder that its content decides."""

    recipe: Recipe
    folder: Path
    key: str

    @property
    def name(self) -> str:
        """The folder's own name, which no other run of the sweep has."""
        return self.folder.name

    def resolved(self) -> Job:
        """Return the job with its folder as seen from anywhere."""
        return replace(self, folder=self.folder.resolve())

    def result(self) -> Mapping[str, Any] | None:
        """Return the result if the run is finished; a folder that holds another run's is an error."""
        result = read_result(self.folder)
        if result is not None and result.get("key") != self.key:
            raise FolderError(f"{self.folder} holds the result of another run. Move it away, or sweep elsewhere.")
        return result


@dataclass(frozen=True)
class Outcome:
    """How a worker's try at a run ended.

    finished: result.json is written. failed: an error that another try would meet as well. busy: another process has
    the folder. died: the worker was killed, or asked to stop by somebody else; the run goes on from its checkpoint.
    """

    kind: Literal["finished", "failed", "busy", "died"]
    text: str = ""


def jobs_for(recipes: Sequence[Recipe], folder: Path) -> list[Job]:
    """Return a job for each recipe; recipes that describe the same run share its folder."""
    return [_job(recipe, folder) for recipe in recipes]


def _job(recipe: Recipe, folder: Path) -> Job:
    key = recipe.key()
    return Job(recipe, folder / f"{recipe.name()}-{key[:8]}", key)
