"""Runs what an item lacks, tunes what nobody has tuned, and makes its view; whatever is finished is never repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from regrow.paper.cells import Cell, Library
from regrow.paper.item import Item
from regrow.paper.rates import Rate
from regrow.paper.scales import Scale
from regrow.paper.tuning import Choice, choose, finetuning_cells, next_rates, rate_cells, rates_tried, to_tune
from regrow.paper.views import View
from regrow.runs.folder import write_json
from regrow.runs.recipe import Recipe

Train = Callable[[Sequence[Recipe], Path], None]
"""Trains recipes in folders of a folder; what is finished there is left alone."""
Tell = Callable[[str], None]


def reproduce(item: Item, scale: Scale, out: Path, *, train: Train, tune: bool = True, tell: Tell = print) -> View:
    """Run everything that `item` needs at `scale` below `out`, and return what came out.

    An interrupted call goes on where it was. With `tune`, methods whose learning rate is not known are tuned first.
    """
    folder = out / scale.name
    scale = with_choices(scale, folder)
    if tune:
        scale = _tuned(item, scale, folder, train, tell)
    _complete(lambda library: item.cells(scale, library), folder, train, tell)
    if item.work is not None:
        item.work(scale, folder)
    return show(item, scale, out)


def show(item: Item, scale: Scale, out: Path, records: Iterable[Path] = ()) -> View:
    """Return the view of what is finished below `out` and in `records` (folders, files of results); train nothing."""
    folder = out / scale.name
    return item.view(with_choices(scale, folder), Library.read([folder, *records]))


def with_choices(scale: Scale, folder: Path) -> Scale:
    """Return the scale with the learning rates that were chosen in `folder`."""
    path = folder / "tuning.json"
    if not path.is_file():
        return scale
    rows = json.loads(path.read_text(encoding="utf-8"))
    fields = ("lr", "finetune_optimizer", "finetune_lr", "source")
    chosen = {(row["network"], row["method"]): Rate(**{name: row[name] for name in fields}) for row in rows}
    return scale.changed(rates={**scale.rates, **chosen})


def _complete(wanted: Callable[[Library], list[Cell]], folder: Path, train: Train, tell: Tell) -> None:
    """Run what is lacking until nothing is; some runs can be named only when others are finished."""
    before: set[str] = set()
    while lacking := Library.read([folder]).lacking(wanted(Library.read([folder]))):
        keys = {recipe.key() for recipe in lacking}
        if keys <= before:
            return  # they were run and are still not there: the view will say so
        tell(f"{len(lacking)} trainings to do")
        train(lacking, folder / "runs")
        before |= keys


def _tuned(item: Item, scale: Scale, folder: Path, train: Train, tell: Tell) -> Scale:
    """Tune what the item needs and nobody has tuned, write the choices down, and return the scale with them."""
    library = Library.read([folder])
    choices = []
    for network, method, finetuned in to_tune(scale, item.cells(scale, library)):
        tell(f"tuning {method} on {network}")
        choice = _tune(scale, network, method, finetuned, folder, train)
        if choice is not None:
            choices.append(choice.as_row())
    path = folder / "tuning.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    if choices:
        write_json(path, [*known, *choices])
    return with_choices(scale, folder)


def _tune(scale: Scale, network: str, method: str, finetuned: bool, folder: Path, train: Train) -> Choice | None:
    failed: set[float] = set()
    while True:
        library = Library.read([folder])
        tried = {**dict.fromkeys(failed, None), **rates_tried(scale, library, network, method)}
        rates = next_rates(tried, scale.grid)
        if not rates:
            break
        train(library.lacking(rate_cells(scale, network, method, rates)), folder / "runs")
        failed |= set(rates) - rates_tried(scale, Library.read([folder]), network, method).keys()
    choice = choose(scale, library, network, method, failed=failed)
    if choice is not None and finetuned:
        cells = finetuning_cells(scale, network, method, choice.rate.lr).values()
        train(library.lacking(cells), folder / "runs")
        choice = choose(scale, Library.read([folder]), network, method, failed=failed)
    return choice
