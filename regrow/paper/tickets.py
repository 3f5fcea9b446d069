"""Searches for a lottery ticket with the training of a recipe; every level becomes a run folder like any other.

A search takes many trainings. It goes on at the level at which it was interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from regrow.analysis import Dynamics, account
from regrow.core import Masks
from regrow.methods import Fixed, LotteryTicket
from regrow.methods.lottery import level_sparsities
from regrow.train import parts
from regrow.train.config import Recipe
from regrow.train.environment import environment, versions
from regrow.train.files import write_json, write_whole
from regrow.train.loop import Phase, Tally, Trainer, make_trainer
from regrow.train.rates import training_rate

_DROP = 0.2
_FINAL = ("epoch", "step", "loss", "test_loss", "top1", "top5", "sparsity", "delta")


@dataclass(frozen=True)
class Ticket:
    """A search: train, drop a fifth of what is left, go back to the weights of epoch `rewind`, and so on."""

    recipe: Recipe
    """The training of every level, without its pruning."""
    sparsity: float
    rewind: int

    @property
    def levels(self) -> list[float]:
        """The sparsities of the trainings, from dense to the one asked for."""
        return level_sparsities(self.sparsity, _DROP)

    def level(self, sparsity: float) -> Recipe:
        """Return the recipe under which the run of one level is known."""
        options = (f"drop={_DROP}", f"rewind={self.rewind}")
        return self.recipe.changed(method="lottery", sparsity=round(sparsity, 6), options=options)

    def epochs(self, level: int) -> int:
        """Return how long a level trains: the first from the beginning, the others from where they go back to."""
        return self.recipe.epochs - (self.rewind if level else 0)


def search(ticket: Ticket, folder: Path, *, tell: Callable[[str], None] = print) -> list[Path]:
    """Run what is left of the search, and return the run folders of its levels."""
    folders = [folder / _folder_name(ticket.level(sparsity)) for sparsity in ticket.levels]
    if all((each / "result.json").is_file() for each in folders):
        return folders
    trainer = make_trainer(ticket.recipe.changed(method="dense"))
    procedure = LotteryTicket(
        trainer.model,
        ticket.sparsity,
        rewind=ticket.rewind * trainer.sets.steps,
        drop=_DROP,
        folder=folder / f"search-{_folder_name(ticket.level(ticket.sparsity))}",
    )

    def train(model: nn.Module, masks: Masks, start: int) -> dict[str, Any]:
        sparsity = min(ticket.levels, key=lambda level: abs(level - masks.sparsity))
        tell(f"lottery ticket: {100 * sparsity:.1f} % pruned, {ticket.levels.index(sparsity) + 1} of {len(folders)}")
        began = time.monotonic()
        records = _train_level(trainer, masks, start)
        result = _write(trainer, ticket.level(sparsity), folder, records, time.monotonic() - began)
        return {"top1": result["top1"], "sparsity": result["sparsity"]}

    procedure.run(train)
    return folders


def _train_level(trainer: Trainer, masks: Masks, start: int) -> list[dict[str, Any]]:
    """Train from step `start` of the schedule to its end, with a fresh optimizer and the masks fixed."""
    recipe = trainer.recipe
    trainer.phase.pruner.detach()
    total = trainer.sets.steps * recipe.epochs
    optimizer = parts.make_optimizer(recipe, trainer.model, kind=recipe.optimizer, lr=recipe.lr)
    pruner = Fixed(trainer.model, optimizer, masks)
    trainer.phase = Phase("train", 0, total, training_rate(recipe, total), optimizer, pruner)
    trainer.dynamics = Dynamics(pruner.masks)
    trainer.step, trainer.tally = start, Tally()
    records: list[dict[str, Any]] = []
    trainer.run(lambda: None, records.append)
    return records


def _write(
    trainer: Trainer, recipe: Recipe, folder: Path, records: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Write the level as a run folder; the result comes last, since it says that the run is whole."""
    last = records[-1]
    size = account(trainer.model, trainer.model.architecture.input_shape, trainer.phase.pruner.masks)
    result = {
        "name": recipe.name(),
        "key": recipe.key(),
        "evaluated_on": "holdout" if recipe.holdout else "test",
        **{name: last[name] for name in _FINAL if name in last},
        **size.totals(),
        "mask_updates": sum(epoch["refreshes"] for epoch in records),
        "still_changing": trainer.dynamics.still_changing(),
        "recipe": json.loads(json.dumps(dataclasses.asdict(recipe))),
        "versions": versions(),
        "processes": 1,
        "seconds": seconds,
    }
    run = folder / _folder_name(recipe)
    run.mkdir(parents=True, exist_ok=True)
    write_whole(run / "recipe.toml", recipe.to_toml().encode())
    write_json(run / "environment.json", environment())
    write_whole(run / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())
    write_json(run / "result.json", result)
    return result


def _folder_name(recipe: Recipe) -> str:
    return f"{recipe.name()}-{recipe.key()[:8]}"
