"""A run is a folder: recipe in, metrics, checkpoint, model and result out; whatever interrupts it, it goes on."""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from regrow.analysis import Account, account
from regrow.deploy.container import safetensors
from regrow.deploy.files import save_model
from regrow.models import Network
from regrow.train import checkpoint
from regrow.train.config import Recipe
from regrow.train.environment import environment, versions
from regrow.train.events import EpochEnded, Event, Finished, Listener, Started, Stepped
from regrow.train.files import FolderError, cannot_write, remove_partial, remove_shards, write_json, write_whole
from regrow.train.folder import DIVERGED, read_result
from regrow.train.lock import locked
from regrow.train.loop import DivergedError, StateError, make_trainer
from regrow.train.metrics import Metrics, read_metrics
from regrow.train.parallel import make_mesh
from regrow.train.signals import Stop, StoppedError, stop_requests
from regrow.train.world import World, joined

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

    Processes that torchrun has started train together: a batch is shared between them, and process 0 alone listens,
    reads and writes.

    >>> run(Recipe(data="digits", epochs=10), "runs/first")["top1"]
    """
    safetensors("torch")  # what is missing to write the model is said before the training, not after it
    folder = Path(folder) if folder is not None else Path("runs") / f"{recipe.name()}-{recipe.key()[:8]}"
    group = joined(recipe.device, sharded=recipe.parallel == "fsdp")
    with group as world, stop_requests() as stop, ExitStack() as lock:
        recipe = world.ask_first(lambda: _entered(recipe, folder, lock))
        return _Run(recipe, folder, list(listeners) if world.first else [], save_every, stop, world).complete()


def _entered(recipe: Recipe, folder: Path, lock: ExitStack) -> Recipe:
    """Take the folder for this process and return the recipe as it is trained there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    lock.enter_context(locked(folder))
    remove_partial(folder)
    return _settled(recipe, folder)


def _settled(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with what was left open decided: as the folder has it, or as it is here."""
    path = folder / "recipe.toml"
    if path.is_file():
        saved = Recipe.read(path)
        recipe = dataclasses.replace(recipe, threads=recipe.threads or saved.threads)
        if saved.key() != recipe.key():
            raise FolderError(f"{folder} holds another run: {_differences(saved, recipe)}. Give another with --out.")
        if saved.parallel != recipe.parallel:
            warnings.warn(
                f"{folder} goes on with --parallel {saved.parallel}, as it was started: {recipe.parallel} has no effect"
                " here. For a run with it, give another folder with --out.",
                stacklevel=2,
            )
        return dataclasses.replace(recipe, parallel=saved.parallel)
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
    """One process's work on a run folder; process 0 alone opens it."""

    def __init__(
        self, recipe: Recipe, folder: Path, listeners: list[Listener], save_every: float, stop: Stop, world: World
    ) -> None:
        self.recipe, self.folder, self.stop, self.world = recipe, folder, stop, world
        self._listeners, self._save_every = listeners, save_every
        self._checkpoint = folder / "checkpoint.pt"

    def complete(self) -> dict[str, Any]:
        """Do what is left to do."""
        if (result := self.world.ask_first(lambda: read_result(self.folder))) is not None:
            self._tell(Finished(self.folder, result))
            return result
        self._begin()
        try:
            self.trainer.run(self._after_step, self._after_epoch)
        except DivergedError as error:
            if self.world.first:
                write_json(self.folder / DIVERGED, self._divergence(str(error)))
            raise DivergedError(f"{error}. {self._kept()}") from None
        finally:
            if self._metrics:
                self._metrics.close()
        return self._finish()

    def _divergence(self, reason: str) -> dict[str, Any]:
        """Return the record of a run that diverged: a finding, with everything of a result but an accuracy."""
        return {
            **self._about(),
            "diverged": reason,
            "phase": self.trainer.phase.name,
            "epoch": self.trainer.epoch,
            "step": self.trainer.step,
        }

    def _begin(self) -> None:
        state = self.world.ask_first(self._read)
        if "shards" in state:
            from regrow.train import sharded

            state = sharded.load(self.folder, state, make_mesh(self.recipe.device, self.world))
        try:
            self.trainer = make_trainer(self.recipe, state.get("trainer"), world=self.world)
        except StateError as error:
            raise self._unusable(str(error)) from error
        self._seconds: float = state["seconds"]
        self._last: dict[str, Any] | None = state["last"]
        self._metrics = self._open(state["metrics"]) if self.world.first else None
        self._started = self._saved = time.monotonic()
        self._tell(
            Started(
                recipe=self.recipe,
                folder=self.folder,
                account=self._account(),
                step=self.trainer.step,
                steps_per_epoch=self.trainer.sets.steps,
                total=self.trainer.total,
                resumed="trainer" in state,
            )
        )

    def _read(self) -> dict[str, Any]:
        if not self._checkpoint.is_file():
            return {"metrics": 0, "seconds": 0.0, "last": None}
        state = checkpoint.load(self._checkpoint)
        kinds = {"trainer": dict, "metrics": int, "seconds": float, "last": dict | None}
        for name, kind in kinds.items():
            if not isinstance(state.get(name), kind):
                raise self._unusable(f"its entry {name!r} is {state.get(name)!r}")
        return state

    def _unusable(self, reason: str) -> FolderError:
        return FolderError(
            f"{self._checkpoint} is not a state of this run ({reason}). Remove it to start from the beginning."
        )

    def _open(self, position: int) -> Metrics:
        write_whole(self.folder / "recipe.toml", self.recipe.to_toml().encode())
        write_json(self.folder / "environment.json", environment(self.world.size))
        return Metrics(self.folder / "metrics.jsonl", position)

    def _after_step(self) -> None:
        tally = self.trainer.tally
        self._tell(Stepped(self.trainer.step, tally.loss / max(tally.images, 1)))
        # Whoever is asked to stop, or finds that it is time to save, says so: what follows they do together.
        signal, late = self.world.most(self.stop.signal, time.monotonic() - self._saved > self._save_every)
        if signal or late:
            self._save()
        if signal:
            raise StoppedError(int(signal), self.trainer.step, self.folder)

    def _after_epoch(self, record: dict[str, Any]) -> None:
        if self._metrics:
            self._metrics.append(record)
        self._last = record
        self._save()
        self._tell(EpochEnded(record))

    def _save(self) -> None:
        state = {"trainer": self.trainer.state_dict(), "seconds": self._elapsed(), "last": self._last}
        if self.recipe.parallel == "fsdp":
            from regrow.train import sharded

            state = sharded.save(self.folder, state, self.world)
        if self._metrics:
            checkpoint.save(self._checkpoint, {**state, "metrics": self._metrics.position})
        if self._metrics and "shards" in state:
            remove_shards(self.folder, keep=str(state["shards"]))
        self._saved = time.monotonic()

    def _finish(self) -> dict[str, Any]:
        model, costs = self.trainer.whole_model(), self._account()
        result = self.world.ask_first(lambda: self._write_result(model, costs))
        self._tell(Finished(self.folder, result))
        return result

    def _write_result(self, model: Network, costs: Account) -> dict[str, Any]:
        last = self._last or {}
        self._save_model(model)
        about = self._about()
        result = {
            "name": about.pop("name"),
            "key": about.pop("key"),
            "evaluated_on": "holdout" if self.recipe.holdout else "test",
            **{name: last[name] for name in _FINAL if name in last},
            **costs.totals(),
            "mask_updates": sum(epoch["refreshes"] for epoch in read_metrics(self.folder)),
            "still_changing": self.trainer.dynamics.still_changing(),
            **about,
        }
        write_json(self.folder / "result.json", result)
        (self.folder / DIVERGED).unlink(missing_ok=True)  # of an earlier try
        return result

    def _about(self) -> dict[str, Any]:
        """Return what the run is, what it ran with and how long it took."""
        return {
            "name": self.recipe.name(),
            "key": self.recipe.key(),
            "recipe": json.loads(json.dumps(dataclasses.asdict(self.recipe))),
            "versions": versions(),
            "processes": self.world.size,
            "seconds": self._elapsed(),
        }

    def _save_model(self, model: Network) -> None:
        path = self.folder / "model.safetensors"
        try:
            save_model(model, path)
        except OSError as error:
            raise cannot_write(path, error) from error

    def _account(self) -> Account:
        model = self.trainer.whole_model()
        return account(model, model.architecture.input_shape, self.trainer.phase.pruner.whole_masks())

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
