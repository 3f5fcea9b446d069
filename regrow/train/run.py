"""A run from start or resume to result.json. The run folder holds recipe, metrics, checkpoint, model and result."""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regrow.analysis import Account, account
from regrow.files.model_file import safetensors, save_model
from regrow.runs.folder import (
    CHECKPOINT,
    DIVERGED,
    Metrics,
    RunFolderError,
    check_entries,
    check_not_in_a_run,
    entered,
    read_metrics,
    read_recipe,
    read_result,
    remove_partial,
    remove_shards,
    write_json,
    write_whole,
    writing,
)
from regrow.runs.recipe import Recipe, RecipeError
from regrow.runs.stop import Stop, StoppedError, stop_requests
from regrow.system import environment, versions
from regrow.train import checkpoint
from regrow.train.distributed import Ranks, joined, make_mesh
from regrow.train.events import EpochEnded, Event, Finished, Listener, Started, Stepped
from regrow.train.loop import DivergedError, StateError, Trainer, make_trainer

# Entries of the result that come from the record of the last epoch (never the best one).
_FINAL = ("epoch", "step", "loss", "test_loss", "top1", "top5", "sparsity", "delta")


def run(
    recipe: Recipe,
    folder: Path | str | None = None,
    *,
    listeners: Iterable[Listener] = (),
    save_every: float = 120.0,
    imports: Collection[str] = (),
) -> dict[str, Any]:
    """Train `recipe` in `folder` and return the result; an interrupted run is resumed.

    The state is saved after every epoch and every `save_every` seconds. On SIGINT and SIGTERM it is saved and
    `StoppedError` is raised. However the run was interrupted, the same call resumes from the last checkpoint; on the
    CPU with the same number of threads, the result is bit-identical. A finished run is not repeated.

    A recipe may name callables as its model and data, such as `my_package.net:build`. Those in `imports` are imported,
    others are refused: a recipe that was read from somebody else's folder must not run code.

    Processes that torchrun has started split each batch; only rank 0 calls listeners and uses the folder.

    >>> run(Recipe(data="digits", epochs=10), "runs/first")["top1"]
    """
    safetensors("torch")  # reports a missing package before the training, not after it
    folder = Path(folder) if folder is not None else Path("runs") / recipe.folder_name()
    group = joined(recipe.device, sharded=recipe.parallel == "fsdp")
    with group as ranks, stop_requests() as stop, ExitStack() as lock:
        recipe = ranks.on_rank0(lambda: _enter(recipe, folder, lock))
        shown = list(listeners) if ranks.is_rank0 else []
        return _Run(recipe, folder, shown, save_every, stop, ranks, imports).complete()


def _enter(recipe: Recipe, folder: Path, lock: ExitStack) -> Recipe:
    """Lock the folder for this process and return the recipe to train."""
    lock.enter_context(entered(folder))
    check_entries(folder)
    remove_partial(folder)
    return _completed(recipe, folder)


def _completed(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with its unset fields filled in from the folder or from this machine."""
    path = folder / "recipe.toml"
    if path.is_file():
        saved = read_recipe(folder)
        recipe = dataclasses.replace(recipe, threads=recipe.threads or saved.threads)
        if saved.key() != recipe.key():
            raise RunFolderError(
                f"{folder} holds another run: {_differences(saved, recipe)}. Choose another folder with --out."
            )
        if saved.parallel != recipe.parallel:
            warnings.warn(
                f"{folder} continues with --parallel {saved.parallel}, with which it was started; {recipe.parallel} is "
                "ignored. To use it, choose another folder with --out.",
                stacklevel=2,
            )
        return dataclasses.replace(recipe, parallel=saved.parallel)
    check_not_in_a_run(folder)
    if foreign := sorted(entry.name for entry in folder.iterdir() if entry.name not in ("lock", "log.txt")):
        raise RunFolderError(
            f"{folder} is not a run folder but has files ({foreign[0]}, …). Choose another with --out."
        )
    return dataclasses.replace(recipe, threads=recipe.threads or torch.get_num_threads())


def _differences(saved: Recipe, recipe: Recipe) -> str:
    wanted = dataclasses.asdict(recipe)
    return ", ".join(
        f"{name} is {value} there and {wanted[name]} here"
        for name, value in dataclasses.asdict(saved).items()
        if value != wanted[name]
    )


def about_run(recipe: Recipe, seconds: float, processes: int = 1) -> dict[str, Any]:
    """Return the identity, versions and time of a run."""
    return {
        "name": recipe.name(),
        "key": recipe.key(),
        "recipe": json.loads(json.dumps(dataclasses.asdict(recipe))),
        "versions": versions(),
        "processes": processes,
        "seconds": seconds,
    }


def make_result(
    trainer: Trainer, costs: Account, records: list[dict[str, Any]], last: dict[str, Any], about: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of result.json; `records` has one record per epoch, and `last` is the last record."""
    return {
        "name": about["name"],
        "key": about["key"],
        "evaluated_on": "holdout" if trainer.recipe.holdout else "test",
        **{name: last[name] for name in _FINAL if name in last},
        **costs.totals(),
        "mask_updates": sum(epoch["refreshes"] for epoch in records),
        "still_changing": trainer.dynamics.still_changing(),
        **_input(trainer),
        **about,
    }


def _input(trainer: Trainer) -> dict[str, Any]:
    """Return shape and type of one input of a user's network; networks of regrow.models store theirs."""
    if not trainer.recipe.imports:
        return {}
    given = trainer.sets.input
    shape, dtype = (given.shape[1:], given.dtype) if isinstance(given, Tensor) else (given, torch.float32)
    return {"input_shape": list(shape), "input_dtype": str(dtype).removeprefix("torch.")}


@dataclass
class _Run:
    """Work of one process on a run; only rank 0 uses the folder."""

    recipe: Recipe
    folder: Path
    listeners: list[Listener]
    save_every: float
    stop: Stop
    ranks: Ranks
    imports: Collection[str]

    def complete(self) -> dict[str, Any]:
        """Train what is left and return the result."""
        if (result := self.ranks.on_rank0(lambda: read_result(self.folder))) is not None:
            self._tell(Finished(self.folder, result))
            return result
        self._check_torch()
        self._begin()
        try:
            self.trainer.run(self._after_step, self._after_epoch)
        except DivergedError as error:
            if self.ranks.is_rank0:
                write_json(self.folder / DIVERGED, self._divergence(str(error)))
            raise DivergedError(f"{error}. {self._kept()}") from None
        finally:
            if self._metrics:
                self._metrics.close()
        return self._finish()

    def _divergence(self, reason: str) -> dict[str, Any]:
        """Return the record of a diverged run: everything of a result except an accuracy."""
        return {
            **self._about(),
            "diverged": reason,
            "phase": self.trainer.phase.name,
            "epoch": self.trainer.epoch,
            "step": self.trainer.step,
        }

    def _check_torch(self) -> None:
        if self.recipe.parallel == "fsdp" and not checkpoint.saves_shards():
            raise RecipeError(
                f'parallel = "fsdp" needs torch 2.9 or newer for its checkpoints, got {torch.__version__}. '
                'Use "ddp", or FSDP2 in your own loop.'
            )

    def _begin(self) -> None:
        self._checkpoint = self.folder / CHECKPOINT
        state = self.ranks.on_rank0(self._read)
        if "shards" in state:
            state = checkpoint.load_sharded(self.folder, state, make_mesh(self.recipe.device, self.ranks))
        try:
            self.trainer = make_trainer(self.recipe, state.get("trainer"), ranks=self.ranks, imports=self.imports)
        except StateError as error:
            raise self._unusable(str(error)) from error
        self._seconds: float = state["seconds"]
        self._last: dict[str, Any] | None = state["last"]
        self._metrics = self._open(state["metrics"]) if self.ranks.is_rank0 else None
        self._started = self._saved = time.monotonic()
        pruner = self.trainer.phase.pruner
        self._tell(
            Started(
                recipe=self.recipe,
                folder=self.folder,
                account=self._account(),
                step=self.trainer.step,
                steps_per_epoch=self.trainer.sets.steps,
                total=self.trainer.total,
                resumed="trainer" in state,
                every=pruner.every if pruner.is_periodic() else None,
            )
        )

    def _read(self) -> dict[str, Any]:
        try:
            state = checkpoint.load(self._checkpoint)
        except FileNotFoundError:
            return {"metrics": 0, "seconds": 0.0, "last": None}
        kinds = {"trainer": dict, "metrics": int, "seconds": float, "last": dict | None}
        for name, kind in kinds.items():
            if not isinstance(state.get(name), kind):
                raise self._unusable(f"its entry {name!r} is {state.get(name)!r}")
        return state

    def _unusable(self, reason: str) -> RunFolderError:
        return RunFolderError(
            f"{self._checkpoint} is not a state of this run ({reason}). Remove it to start from the beginning."
        )

    def _open(self, position: int) -> Metrics:
        write_whole(self.folder / "recipe.toml", self.recipe.to_toml().encode())
        write_json(self.folder / "environment.json", environment(self.ranks.size))
        return Metrics(self.folder / "metrics.jsonl", position)

    def _after_step(self) -> None:
        totals = self.trainer.totals
        self._tell(Stepped(self.trainer.step, totals.loss / max(totals.images, 1)))
        # If any rank is asked to stop, or finds that it is time to save, all ranks do so together.
        signal, late = self.ranks.max(self.stop.signal, time.monotonic() - self._saved > self.save_every)
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
            state = checkpoint.save_sharded(self.folder, state, self.ranks)
        if self._metrics:
            self._metrics.check_present()
            checkpoint.save(self._checkpoint, {**state, "metrics": self._metrics.position})
        if self._metrics and "shards" in state:
            remove_shards(self.folder, keep=str(state["shards"]))
        self._saved = time.monotonic()

    def _finish(self) -> dict[str, Any]:
        model, costs = self.trainer.full_model(), self._account()
        result = self.ranks.on_rank0(lambda: self._write_result(model, costs))
        self._tell(Finished(self.folder, result))
        return result

    def _write_result(self, model: nn.Module, costs: Account) -> dict[str, Any]:
        if self._metrics:
            self._metrics.check_present()
        path = self.folder / "model.safetensors"
        with writing(path):
            save_model(model, path)
        result = make_result(self.trainer, costs, read_metrics(self.folder), self._last or {}, self._about())
        write_json(self.folder / "result.json", result)
        (self.folder / DIVERGED).unlink(missing_ok=True)  # from an earlier attempt
        return result

    def _about(self) -> dict[str, Any]:
        return about_run(self.recipe, self._elapsed(), self.ranks.size)

    def _account(self) -> Account:
        model = self.trainer.full_model()
        return account(model, self.trainer.sets.input, self.trainer.phase.pruner.full_masks())

    def _elapsed(self) -> float:
        return self._seconds + time.monotonic() - self._started

    def _kept(self) -> str:
        if not self._checkpoint.is_file():
            return "There is no checkpoint. Lower --lr or raise --warmup."
        step = checkpoint.load(self._checkpoint)["trainer"]["step"]
        return f"The last good checkpoint is {self._checkpoint} (step {step}). Lower --lr or raise --warmup."

    def _tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)
