"""Where every number of a report comes from: recipe, runs and machines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regrow.report.outcomes import Outcome
from regrow.report.runs import Run
from regrow.report.tasks import Entry, Task
from regrow.train.text import duration


@dataclass(frozen=True)
class Source:
    """One run behind a line of the table."""

    folder: str
    seed: int
    top1: str
    time: str
    environment: int | None
    """The number of its environment, from 1."""
    command: str


@dataclass(frozen=True)
class Origin:
    """The recipe of an entry and its runs."""

    label: str
    recipe: str
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Environment:
    """Machine and software that runs have in common."""

    number: int
    facts: tuple[tuple[str, str], ...]


class Environments:
    """Numbers the different environments of runs in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, run: Run) -> int | None:
        """Return the number of the run's environment; None where it was not recorded."""
        facts = {name: value for name, value in run.environment.items() if name != "command"}
        return self._numbers.setdefault(json.dumps(facts), len(self._numbers) + 1) if facts else None

    def all(self) -> list[Environment]:
        """Return every environment met so far."""
        return [Environment(number, _facts(json.loads(text))) for text, number in self._numbers.items()]


def origins(task: Task, environments: Environments) -> list[Origin]:
    """Return the recipes and runs of a task, in the order of its table."""
    return [_origin(entry, environments) for entry in task.entries]


def _origin(entry: Entry, environments: Environments) -> Origin:
    sources = [_source(outcome, environments) for outcome in entry.group.outcomes]
    return Origin(entry.label, entry.group.outcomes[0].run.recipe.to_toml(), tuple(sources))


def _source(outcome: Outcome, environments: Environments) -> Source:
    run, top1 = outcome.run, outcome.final.get("top1")
    seconds = (run.result or run.diverged or {}).get("seconds")
    return Source(
        folder=str(run.folder),
        seed=run.recipe.seed,
        top1=("★ diverged" if outcome.diverged else "not finished") if top1 is None else f"{top1:.2f}",
        time="–" if seconds is None else duration(seconds),
        environment=environments.number(run),
        command=_command(run.environment.get("command") or []),
    )


def _command(words: Sequence[str]) -> str:
    return shlex.join(map(str, words))


def _facts(environment: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    versions = environment.pop("versions", {})
    facts = {**environment, **versions}
    return tuple((name, str(value)) for name, value in facts.items() if value is not None)
