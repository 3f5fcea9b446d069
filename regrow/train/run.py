"""A run is a folder: recipe in, metrics, checkpoint, model and result out; whatever interrupts it, it goes on."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from regrow.analysis import Account, account
from regrow.deploy.files import save_model
from regrow.train import checkpoint
from regrow.train.config import Recipe
from regrow.train.environment import environment, versions
from regrow.train.events import EpochEnded, Event, Finished, Listener, Started, Stepped
from regrow.train.files import FolderError, cannot_write, remove_partial, write_json, write_whole
from regrow.train.folder import read_result
from regrow.train.lock import locked
from regrow.train.loop import DivergedError, make_trainer
from regrow.train.metrics import Metrics
from regrow.train.signals import Stop, StoppedError, stop_requests

# What the result takes from the record of the last epoch: never the best one.
_FINAL = ("epoch", "step", "loss", "test_loss", "top1", "top5", "sparsity", "delta")


def run(
    recipe: Recipe,
    folder: Path | str | None = None,
    *,
    listeners: Iterable[Listener] = (),
    save_every: float = 120.0,
) -> dict[str, Any]:
    """Train as `recipe` says in `folder` and return the result; go on where an earlier process stopped.

    The state is saved at the end of every epoch and every `save_every` seconds. SIGINT and SIGTERM save and raise
    `StoppedError`; after any other end, a kill included, the same call continues from the last checkpoint and, on the
    CPU with the same number of threads, ends with the same bits. A finished run is not repeated.

    >>> run(Recipe(data="digits", epochs=10), "runs/first")["top1"]
    """
    folder = Path(folder) if folder is not None else Path("runs") / f"{recipe.name()}-{recipe.key()[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    with locked(folder), stop_requests() as stop:
        remove_partial(folder)
        return _Run(_settled(recipe, folder), folder, list(listeners), save_every, stop).complete()


def _settled(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with what was left open decided: as the folder has it, or as it is here."""
    path = folder / "recipe.toml"
    if path.is_file():
        saved = Recipe.read(path)
        if saved.key() != recipe.key():
            raise FolderError(f"{folder} holds another run: {_differences(saved, recipe)}. Give another with --out.")
        return dataclasses.replace(recipe, threads=recipe.threads or saved.threads)
    if foreign := sorted(entry.name for entry in folder.iterdir() if entry.name not in ("lock", "log.txt")):
        raise FolderError(f"{folder} is not a run but has files ({foreign[0]}, …). Give another folder with --out.")
    return dataclasses.replace(recipe, threads=recipe.threads or torch.get_num_threads())


def _differences(saved: Recipe, recipe: Recipe) -> str:
    mine = dataclasses.asdict(recipe)
    differing = [
        f"{name} is {value} there and {mine[name]} here"
        for name, value in dataclasses.asdict(saved).items()
        if value != mine[name]
    ]
    return ", ".join(differing)


class _Run:
    """One process's work on a run folder."""

    def __init__(self, recipe: Recipe, folder: Path, listeners: list[Listener], save_every: float, stop: Stop) -> None:
        self.recipe, self.folder, self.stop = recipe, folder, stop
        self._listeners, self._save_every = listeners, save_every
        self._checkpoint = folder / "checkpoint.pt"

    def complete(self) -> dict[str, Any]:
        """Do what is left to do."""
        if (result := read_result(self.folder)) is not None:
            self._tell(Finished(self.folder, result))
            return result
        self._begin()
        write_whole(self.folder / "recipe.toml", self.recipe.to_toml().encode())
        write_json(self.folder / "environment.json", environment())
        try:
            self.trainer.run(self._after_step, self._after_epoch)
        except DivergedError as error:
            raise DivergedError(f"{error}. {self._kept()}") from None
        finally:
            self._metrics.close()
        return self._finish()

    def _begin(self) -> None:
        resumed = self._checkpoint.is_file()
        state: dict[str, Any] = {"metrics": 0, "seconds": 0.0, "last": None}
        if resumed:
            state = checkpoint.load(self._checkpoint)
        self.trainer = make_trainer(self.recipe, state.get("trainer"))
        self._seconds: float = state["seconds"]
        self._last: dict[str, Any] | None = state["last"]
        position: int = state["metrics"]
        self._metrics = Metrics(self.folder / "metrics.jsonl", position)
        self._started = self._saved = time.monotonic()
        self._tell(
            Started(
                recipe=self.recipe,
                folder=self.folder,
                account=self._account(),
                step=self.trainer.step,
                steps_per_epoch=self.trainer.sets.steps,
                total=self.trainer.total,
                resumed=resumed,
            )
        )

    def _after_step(self) -> None:
        tally = self.trainer.tally
        self._tell(Stepped(self.trainer.step, tally.loss / max(tally.images, 1)))
        if self.stop.signal:
            self._save()
            raise StoppedError(self.stop.signal, self.trainer.step, self.folder)
        if time.monotonic() - self._saved > self._save_every:
            self._save()

    def _after_epoch(self, record: dict[str, Any]) -> None:
        self._metrics.append(record)
        self._last = record
        self._save()
        self._tell(EpochEnded(record))

    def _save(self) -> None:
        state = {
            "trainer": self.trainer.state_dict(),
            "metrics": self._metrics.position,
            "seconds": self._elapsed(),
            "last": self._last,
        }
        checkpoint.save(self._checkpoint, state)
        self._saved = time.monotonic()

    def _finish(self) -> dict[str, Any]:
        last = self._last or {}
        self._save_model()
        result = {
            "name": self.recipe.name(),
            "key": self.recipe.key(),
            "evaluated_on": "holdout" if self.recipe.holdout else "test",
            **{name: last[name] for name in _FINAL if name in last},
            **self._account().totals(),
            "still_changing": self.trainer.dynamics.still_changing(),
            "recipe": json.loads(json.dumps(dataclasses.asdict(self.recipe))),
            "versions": versions(),
            "seconds": self._elapsed(),
        }
        write_json(self.folder / "result.json", result)
        self._tell(Finished(self.folder, result))
        return result

    def _save_model(self) -> None:
        path = self.folder / "model.safetensors"
        try:
            save_model(self.trainer.model, path)
        except OSError as error:
            raise cannot_write(path, error) from error

    def _account(self) -> Account:
        trainer = self.trainer
        return account(trainer.model, trainer.model.architecture.input_shape, trainer.phase.pruner.masks)

    def _elapsed(self) -> float:
        return self._seconds + time.monotonic() - self._started

    def _kept(self) -> str:
        if not self._checkpoint.is_file():
            return "No checkpoint was made before: lower --lr or raise --warmup."
        step = checkpoint.load(self._checkpoint)["trainer"]["step"]
        return f"The last good checkpoint is {self._checkpoint} (step {step}). Lower --lr or raise --warmup."

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
