"""Is DPF's mask a lottery ticket? The mask trained again from scratch, and the search for a ticket (Section 6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from regrow.methods.scratch import average_cost
from regrow.paper.cells import Cell, Library, mask_name
from regrow.paper.compare import explained
from regrow.paper.item import Item
from regrow.paper.scales import Place, Scale
from regrow.paper.tickets import Ticket, search
from regrow.paper.verdict import same_mask
from regrow.paper.views import NOT_RUN, View, accuracy, as_row, table
from regrow.report.outcomes import Outcome
from regrow.report.tasks import percent
from regrow.train.config import Recipe
from regrow.train.pruning import make_schedule

FRESH = 1000
"""What is added to a seed for initial weights that the mask has not seen."""
_UNSTRUCTURED = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_STRUCTURED = (0.4, 0.5, 0.6, 0.7, 0.8)
_STEPS = 100  # of an epoch, for the average of the ramp

_MARK = " ‡"
_OTHER_MASK = (
    "\n\n‡ Not the mask of the run of DPF beside it: that run was made again since, and found another one. Do not "
    "compare the two."
)

Kind = Literal["own weights", "fresh weights"]
Budget = Literal["same epochs", "same FLOPs"]


def places(scale: Scale, unit: str) -> list[Place]:
    """Return where the paper trains masks again."""
    if unit == "filter":
        return scale.places([("wrn28-2", ratio) for ratio in _STRUCTURED], (0.4,))
    return scale.places([("wrn28-2", sparsity) for sparsity in _UNSTRUCTURED], (0.9, 0.95))


def found_by(scale: Scale, place: Place, unit: str) -> Cell:
    """Return the runs of DPF that find the masks."""
    network, sparsity = place
    fields: dict[str, Any] = {"unit": "filter"} if unit == "filter" else {}
    return scale.cell(network, "dpf", sparsity, **fields)


def retrained(scale: Scale, library: Library, place: Place, unit: str, kind: Kind, budget: Budget) -> Cell:
    """Return the trainings of the masks that DPF has found: one for each seed of DPF that is finished."""
    recipes = []
    for recipe in found_by(scale, place, unit).recipes:
        outcome = library.outcome(recipe)
        if outcome is None:
            continue
        epochs = recipe.epochs if budget == "same epochs" else epochs_of_equal_flops(outcome)
        seed = recipe.seed + (FRESH if kind == "fresh weights" else 0)
        folder = outcome.run.folder
        masks = str(folder) if (folder / "recipe.toml").is_file() else mask_name(recipe)
        recipes.append(scale.recipe(place[0], "fixed", place[1], masks=masks, seed=seed, epochs=epochs))
    return Cell(tuple(recipes))


def epochs_of_equal_flops(outcome: Outcome) -> int:
    """Return for how many epochs the final mask trains on the multiplications that the ramp has cost.

    The cost of a step falls from the dense model's to the pruned one's in proportion to the sparsity of the ramp.
    """
    recipe, whole, final = outcome.recipe, float(outcome.final["macs"]), float(outcome.final["macs_kept"])
    return round(recipe.epochs * _average_cost(recipe, whole, final) / final)


def _average_cost(recipe: Recipe, whole: float, final: float) -> float:
    return average_cost(make_schedule(recipe, _STEPS), _STEPS * recipe.epochs, whole, final)


def tickets(scale: Scale) -> list[Ticket]:
    """Return the searches: to the highest sparsity, through all others, one for each seed."""
    network, sparsity = places(scale, "weight")[-1 if scale.stand_in is None else 0]
    recipes = [scale.recipe(network, "lottery", seed=seed) for seed in scale.seeds]
    return [Ticket(recipe, sparsity, rewind=max(1, round(0.015 * recipe.epochs))) for recipe in recipes]


def _cells(unit: str) -> Callable[[Scale, Library], list[Cell]]:
    def cells(scale: Scale, library: Library) -> list[Cell]:
        found = [found_by(scale, place, unit) for place in places(scale, unit)]
        again = [
            retrained(scale, library, place, unit, kind, budget)
            for place in places(scale, unit)
            for budget in _budgets(unit)
            for kind in _KINDS
        ]
        return [*found, *again]

    return cells


def _view(name: str, unit: str) -> Callable[[Scale, Library], View]:
    def view(scale: Scale, library: Library) -> View:
        rows = [row for place in places(scale, unit) for row in _rows(scale, library, place, unit)]
        head = ["pruned", "DPF", *(f"{kind}, {budget}" for budget in _budgets(unit) for kind in _KINDS)]
        lines = []
        for place in places(scale, unit):
            mine = [row for row in rows if row["sparsity"] == place[1]]
            lines.append([percent(place[1]), *(row["text"] for row in mine)])
        text = f"{table(head, lines)}\n\nDPF's masks, trained again from their own initial weights and from fresh ones."
        text += _OTHER_MASK if _MARK in text else ""
        if unit == "weight":
            searched, more = _search_table(scale, library)
            text, rows = f"{text}\n\n{searched}", [*rows, *more]
        plain = [{key: value for key, value in row.items() if key != "text"} for row in rows]
        return View(name, TITLES[name], f"{text}\n\n{explained(scale)}", plain)

    return view


def _rows(scale: Scale, library: Library, place: Place, unit: str) -> list[dict[str, Any]]:
    cells = {("DPF", ""): found_by(scale, place, unit)} | {
        (kind, budget): retrained(scale, library, place, unit, kind, budget)
        for budget in _budgets(unit)
        for kind in _KINDS
    }
    return [
        {
            "network": place[0],
            "sparsity": place[1],
            "from": start,
            "budget": budget,
            "epochs": cell.recipes[0].epochs if cell.recipes else None,
            "scale": scale.name,
            **as_row(library.summary(cell), library.diverged(cell)),
            "text": accuracy(library, cell) + (_MARK if _other_mask(library, cells["DPF", ""], cell) else ""),
        }
        for (start, budget), cell in cells.items()
    ]


def _other_mask(library: Library, found: Cell, again: Cell) -> bool:
    """Return whether a mask that was trained again is not the one that the run of DPF beside it has found."""
    finders = library.outcomes(found)
    pairs = [(finder, library.outcome(recipe)) for finder, recipe in zip(finders, again.recipes, strict=False)]
    return any(outcome is not None and not same_mask(finder, outcome) for finder, outcome in pairs)


def _search_table(scale: Scale, library: Library) -> tuple[str, list[dict[str, Any]]]:
    """Return the search level by level: accuracy, and the compute spent so far, in dense trainings."""
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
                "compute": compute_of_search(searches[0], library, level),
                "scale": scale.name,
                **as_row(library.summary(cell), library.diverged(cell)),
                "text": accuracy(library, cell),
            }
        )
    lines = [
        [percent(round(row["sparsity"], 4)), row["text"], str(row["trainings"]), _times(row["compute"])] for row in rows
    ]
    text = table(["pruned", "lottery ticket", "trainings so far", "compute so far"], lines)
    for place in places(scale, "weight"):
        if (spent := compute_of_dpf(library, found_by(scale, place, "weight"))) is not None:
            text += f"\n\nDPF at {percent(place[1])}: {_times(spent)}."
    return f"{text}\n\nCompute: multiplications of training, that of the dense network being 1.", rows


def compute_of_search(ticket: Ticket, library: Library, level: int) -> float | None:
    """Return the multiplications of all trainings up to `level`, in dense trainings; None where one was not run."""
    spent = 0.0
    for index, sparsity in enumerate(ticket.levels[: level + 1]):
        outcome = library.outcome(ticket.level(sparsity))
        if outcome is None:
            return None
        spent += ticket.epochs(index) * outcome.final["macs_kept"] / (ticket.recipe.epochs * outcome.final["macs"])
    return spent


def compute_of_dpf(library: Library, cell: Cell) -> float | None:
    """Return the multiplications of a training with DPF, in dense trainings; None where it was not run."""
    for outcome in library.outcomes(cell):
        whole, final = outcome.final["macs"], outcome.final["macs_kept"]
        return _average_cost(outcome.recipe, whole, final) / float(whole)
    return None


def _times(spent: float | None) -> str:
    return NOT_RUN if spent is None else f"{spent:.2f} x"


def _search(scale: Scale, folder: Path) -> None:
    for ticket in tickets(scale):
        search(ticket, folder / "tickets")


def _budgets(unit: str) -> tuple[Budget, ...]:
    """Whole filters were trained again for the same epochs only."""
    return ("same epochs", "same FLOPs") if unit == "weight" else ("same epochs",)


_KINDS: tuple[Kind, ...] = ("own weights", "fresh weights")

TITLES = {
    "lottery": "DPF's masks are no lottery tickets: trained again, and the search for tickets",
    "lottery-structured": "DPF's masks of whole filters are no lottery tickets",
}

ITEMS = (
    Item(
        name="lottery",
        title=TITLES["lottery"],
        view=_view("lottery", "weight"),
        cells=_cells("weight"),
        work=_search,
        cost="then four trainings for each mask and one search (12 trainings to 90 %, 22 to 99 %) for each seed",
    ),
    Item(
        name="lottery-structured",
        title=TITLES["lottery-structured"],
        view=_view("lottery-structured", "filter"),
        cells=_cells("filter"),
        cost="then two trainings for each mask",
    ),
)
