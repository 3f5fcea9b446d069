"""Train DPF's masks from scratch, and search for lottery tickets (Section 6)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from regrow.analysis import Dynamics, account
from regrow.core.schedule import PerPattern, as_schedule
from regrow.core.state import Masks
from regrow.methods.fixed import Fixed
from regrow.methods.lottery import LotteryTicket, average_cost, level_sparsities
from regrow.report.tables import percent
from regrow.runs.folder import write_json, write_whole
from regrow.runs.outcomes import Outcome
from regrow.runs.recipe import Recipe
from regrow.system import environment
from regrow.train import build
from regrow.train.build import make_schedule, training_rate
from regrow.train.loop import EpochTotals, Phase, Trainer, make_trainer
from regrow.train.run import about_run, make_result
from reproduce.experiments import Experiment
from reproduce.results import Cell, ResultStore, mask_name, same_mask
from reproduce.scales import Place, Scale
from reproduce.tables import explained
from reproduce.views import NOT_RUN, Content, accuracy, as_row, table

FRESH = 1000
"""Added to the seed of a run for new initial weights."""
_UNSTRUCTURED = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_STRUCTURED = (0.4, 0.5, 0.6, 0.7, 0.8)
_STEPS = 100  # per epoch, to average over the ramp

_MARK = " ‡"
_OTHER_MASK = (
    "\n\n‡ This mask is not that of the DPF run in the same row: the run was repeated later and found another mask. "
    "Do not compare the two."
)

Kind = Literal["own weights", "fresh weights"]
Budget = Literal["same epochs", "same FLOPs"]


def places(scale: Scale, unit: str) -> list[Place]:
    """Return the networks and sparsities at which masks are retrained."""
    if unit == "filter":
        return scale.places([("wrn28-2", ratio) for ratio in _STRUCTURED], (0.4,))
    return scale.places([("wrn28-2", sparsity) for sparsity in _UNSTRUCTURED], (0.9, 0.95))


def found_by(scale: Scale, place: Place, unit: str) -> Cell:
    """Return the DPF runs whose masks are retrained."""
    network, sparsity = place
    fields: dict[str, Any] = {"unit": "filter"} if unit == "filter" else {}
    return scale.cell(network, "dpf", sparsity, **fields)


def retrained(scale: Scale, store: ResultStore, place: Place, unit: str, kind: Kind, budget: Budget) -> Cell:
    """Return the trainings of DPF's masks from scratch, one for each finished run of DPF."""
    recipes = []
    for recipe in found_by(scale, place, unit).recipes:
        outcome = store.outcome(recipe)
        if outcome is None:
            continue
        epochs = recipe.epochs if budget == "same epochs" else epochs_of_equal_flops(outcome)
        seed = recipe.seed + (FRESH if kind == "fresh weights" else 0)
        folder = outcome.run.folder
        masks = str(folder) if (folder / "recipe.toml").is_file() else mask_name(recipe)
        recipes.append(scale.recipe(place[0], "fixed", place[1], masks=masks, seed=seed, epochs=epochs))
    return Cell(tuple(recipes))


def epochs_of_equal_flops(outcome: Outcome) -> int:
    """Return the epochs of training with the final mask that cost as many MACs as the training with the ramp.

    The cost of a step falls from that of the dense model to that of the pruned one in proportion to the sparsity.
    """
    recipe, whole, final = outcome.recipe, float(outcome.final["macs"]), float(outcome.final["macs_kept"])
    return round(recipe.epochs * _average_cost(recipe, whole, final) / final)


def _average_cost(recipe: Recipe, whole: float, final: float) -> float:
    schedule = as_schedule(make_schedule(recipe, _STEPS))
    assert not isinstance(schedule, PerPattern)  # the paper prunes all layers together
    return average_cost(schedule, _STEPS * recipe.epochs, whole, final)


def tickets(scale: Scale) -> list[Ticket]:
    """Return the searches, one for each seed; a search passes through all lower sparsities."""
    network, sparsity = places(scale, "weight")[-1 if scale.stand_in is None else 0]
    recipes = [scale.recipe(network, "lottery", seed=seed) for seed in scale.seeds]
    return [Ticket(recipe, sparsity, rewind=max(1, round(0.015 * recipe.epochs))) for recipe in recipes]


def _cells(unit: str) -> Callable[[Scale, ResultStore], list[Cell]]:
    def cells(scale: Scale, store: ResultStore) -> list[Cell]:
        return [cell for place in places(scale, unit) for cell in _trainings(scale, store, place, unit).values()]

    return cells


def _content(unit: str) -> Callable[[Scale, ResultStore], Content]:
    def content(scale: Scale, store: ResultStore) -> Content:
        rows = [row for place in places(scale, unit) for row in _rows(scale, store, place, unit)]
        head = ["pruned", "DPF", *(f"{kind}, {budget}" for budget in _budgets(unit) for kind in _KINDS)]
        lines = []
        for place in places(scale, unit):
            mine = [row for row in rows if row["sparsity"] == place[1]]
            lines.append([percent(place[1]), *(row["text"] for row in mine)])
        text = f"{table(head, lines)}\n\nDPF's masks, trained again from their own initial weights and from fresh ones."
        text += _OTHER_MASK if _MARK in text else ""
        if unit == "weight":
            searched, more = _search_table(scale, store)
            text, rows = f"{text}\n\n{searched}", [*rows, *more]
        plain = [{key: value for key, value in row.items() if key != "text"} for row in rows]
        return f"{text}\n\n{explained(scale)}", plain, ()

    return content


def _trainings(scale: Scale, store: ResultStore, place: Place, unit: str) -> dict[tuple[str, str], Cell]:
    """Return DPF and the trainings of its mask, by initial weights and budget."""
    return {("DPF", ""): found_by(scale, place, unit)} | {
        (kind, budget): retrained(scale, store, place, unit, kind, budget)
        for budget in _budgets(unit)
        for kind in _KINDS
    }


def _rows(scale: Scale, store: ResultStore, place: Place, unit: str) -> list[dict[str, Any]]:
    cells = _trainings(scale, store, place, unit)
    return [
        {
            "network": place[0],
            "sparsity": place[1],
            "from": start,
            "budget": budget,
            "epochs": cell.recipes[0].epochs if cell.recipes else None,
            "scale": scale.name,
            **as_row(store.summary(cell), store.diverged(cell)),
            "text": accuracy(store, cell) + (_MARK if _other_mask(store, cells["DPF", ""], cell) else ""),
        }
        for (start, budget), cell in cells.items()
    ]


def _other_mask(store: ResultStore, found: Cell, again: Cell) -> bool:
    """Return whether a retrained mask differs from the mask of the DPF run in the same row."""
    finders = store.outcomes(found)
    pairs = [(finder, store.outcome(recipe)) for finder, recipe in zip(finders, again.recipes, strict=False)]
    return any(outcome is not None and not same_mask(finder, outcome) for finder, outcome in pairs)


def _search_table(scale: Scale, store: ResultStore) -> tuple[str, list[dict[str, Any]]]:
    """Return the levels of the search: accuracy and accumulated compute in dense trainings."""
    rows: list[dict[str, Any]] = []
    searches = tickets(scale)
    for level, sparsity in enumerate(searches[0].levels):
        cell = Cell(tuple(ticket.level(sparsity) for ticket in searches))
        rows.append(
            {
                "network": searches[0].recipe.model,
                "sparsity": sparsity,
                "from": "lottery ticket",
                "trainings": level + 1,
                "compute": compute_of_search(searches[0], store, level),
                "scale": scale.name,
                **as_row(store.summary(cell), store.diverged(cell)),
                "text": accuracy(store, cell),
            }
        )
    lines = [
        [percent(round(row["sparsity"], 4)), row["text"], str(row["trainings"]), _times(row["compute"])] for row in rows
    ]
    text = table(["pruned", "lottery ticket", "trainings so far", "compute so far"], lines)
    for place in places(scale, "weight"):
        if (spent := compute_of_dpf(store, found_by(scale, place, "weight"))) is not None:
            text += f"\n\nDPF at {percent(place[1])}: {_times(spent)}."
    return f"{text}\n\nCompute: multiplications of training, that of the dense network being 1.", rows


def compute_of_search(ticket: Ticket, store: ResultStore, level: int) -> float | None:
    """Return the MACs of all trainings up to `level`, in dense trainings; None if one was not run."""
    spent = 0.0
    for index, sparsity in enumerate(ticket.levels[: level + 1]):
        outcome = store.outcome(ticket.level(sparsity))
        if outcome is None:
            return None
        spent += ticket.epochs(index) * outcome.final["macs_kept"] / (ticket.recipe.epochs * outcome.final["macs"])
    return spent


def compute_of_dpf(store: ResultStore, cell: Cell) -> float | None:
    """Return the MACs of a training with DPF, in dense trainings; None if it was not run."""
    for outcome in store.outcomes(cell):
        whole, final = outcome.final["macs"], outcome.final["macs_kept"]
        return _average_cost(outcome.recipe, whole, final) / float(whole)
    return None


def _times(spent: float | None) -> str:
    return NOT_RUN if spent is None else f"{spent:.2f} x"


def _search(scale: Scale, folder: Path) -> None:
    for ticket in tickets(scale):
        search(ticket, folder / "tickets")


def _budgets(unit: str) -> tuple[Budget, ...]:
    """Return the training budgets; filters are retrained only for the same epochs."""
    return ("same epochs", "same FLOPs") if unit == "weight" else ("same epochs",)


_KINDS: tuple[Kind, ...] = ("own weights", "fresh weights")

EXPERIMENTS = (
    Experiment(
        name="lottery",
        title="DPF's masks are not lottery tickets: training them again, and the search for tickets",
        content=_content("weight"),
        cells=_cells("weight"),
        work=_search,
        cost="then four trainings for each mask and one search (12 trainings to 90 %, 22 to 99 %) for each seed",
    ),
    Experiment(
        name="lottery-structured",
        title="DPF's masks of whole filters are not lottery tickets",
        content=_content("filter"),
        cells=_cells("filter"),
        cost="then two trainings for each mask",
    ),
)


_DROP = 0.2


@dataclass(frozen=True)
class Ticket:
    """A search: train, prune a fifth of the remaining weights, rewind to epoch `rewind`, and repeat."""

    recipe: Recipe
    """Recipe of every level, without pruning."""
    sparsity: float
    rewind: int

    @property
    def levels(self) -> list[float]:
        """Sparsities of the levels, from 0 to the target."""
        return level_sparsities(self.sparsity, _DROP)

    def level(self, sparsity: float) -> Recipe:
        """Return the recipe of one level."""
        options = (f"drop_fraction={_DROP}", f"rewind={self.rewind}")
        return self.recipe.changed(method="lottery", sparsity=round(sparsity, 6), options=options)

    def epochs(self, level: int) -> int:
        """Return the epochs of a level; all but the first start at epoch `rewind`."""
        return self.recipe.epochs - (self.rewind if level else 0)


def search(ticket: Ticket, folder: Path) -> list[Path]:
    """Run or resume the search, and return the run folders of its levels."""
    folders = [folder / ticket.level(sparsity).folder_name() for sparsity in ticket.levels]
    if all((each / "result.json").is_file() for each in folders):
        return folders
    trainer = make_trainer(ticket.recipe.changed(method="dense"))
    procedure = LotteryTicket(
        trainer.model,
        ticket.sparsity,
        rewind=ticket.rewind * trainer.sets.steps,
        drop_fraction=_DROP,
        folder=folder / f"search-{ticket.level(ticket.sparsity).folder_name()}",
    )

    def train(model: nn.Module, masks: Masks, start: int) -> dict[str, Any]:
        sparsity = min(ticket.levels, key=lambda level: abs(level - masks.sparsity))
        print(f"lottery ticket: {100 * sparsity:.1f} % pruned, {ticket.levels.index(sparsity) + 1} of {len(folders)}")
        began = time.monotonic()
        records = _train_level(trainer, masks, start)
        result = _write(trainer, ticket.level(sparsity), folder, records, time.monotonic() - began)
        return {"top1": result["top1"], "sparsity": result["sparsity"]}

    procedure.run(train)
    return folders


def _train_level(trainer: Trainer, masks: Masks, start: int) -> list[dict[str, Any]]:
    """Train from step `start` of the schedule to its end, with a new optimizer and fixed masks."""
    recipe = trainer.recipe
    trainer.phase.pruner.detach()
    total = trainer.sets.steps * recipe.epochs
    optimizer = build.make_optimizer(recipe, trainer.model, kind=recipe.optimizer, lr=recipe.lr)
    pruner = Fixed(trainer.model, optimizer, masks)
    trainer.phase = Phase("train", 0, total, training_rate(recipe, total), optimizer, pruner)
    trainer.dynamics = Dynamics(pruner.masks)
    trainer.step, trainer.totals = start, EpochTotals()
    records: list[dict[str, Any]] = []
    trainer.run(lambda: None, records.append)
    return records


def _write(
    trainer: Trainer, recipe: Recipe, folder: Path, records: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Write the level as a run folder; result.json comes last, because it marks the run as complete."""
    costs = account(trainer.model, trainer.sets.input, trainer.phase.pruner.masks)
    result = make_result(trainer, costs, records, records[-1], about_run(recipe, seconds))
    run = folder / recipe.folder_name()
    run.mkdir(parents=True, exist_ok=True)
    write_whole(run / "recipe.toml", recipe.to_toml().encode())
    write_json(run / "environment.json", environment())
    write_whole(run / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())
    write_json(run / "result.json", result)
    return result
