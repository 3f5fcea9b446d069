"""The experiments of the paper by name: run missing trainings, tune learning rates, and show the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.runs.folder import write_json
from regrow.runs.recipe import Recipe, UsageError
from regrow.text import did_you_mean
from reproduce.results import Cell, ResultStore
from reproduce.scales import Scale, TunedRate
from reproduce.tuning import Choice, choose, finetuning_cells, next_rates, rate_cells, rates_tried, to_tune
from reproduce.views import Content, View


@dataclass(frozen=True)
class Experiment:
    """A table, a figure or a theorem of the paper.

    `cells` returns the runs that the experiment needs. Some depend on the result of others (a mask, a cost), so it is
    called again until nothing is missing. `work` is for anything else, such as the search for a lottery ticket; it
    must be resumable. `content` trains nothing.
    """

    name: str
    title: str
    content: Callable[[Scale, ResultStore], Content]
    cells: Callable[[Scale, ResultStore], list[Cell]] = lambda scale, store: []
    work: Callable[[Scale, Path], None] | None = None
    cost: str = ""
    """The cost of `work`, as text."""

    def view(self, scale: Scale, store: ResultStore) -> View:
        """Return the view of the finished runs in `store`."""
        return View(self.name, self.title, *self.content(scale, store))


Train = Callable[[Sequence[Recipe], Path], None]
"""Function that trains recipes in subfolders of a folder and skips finished ones."""


def reproduce(experiment: Experiment, scale: Scale, out: Path, *, train: Train, tune: bool = True) -> View:
    """Run everything that `experiment` needs at `scale` below `out`, and return its view.

    An interrupted call can be repeated and resumes. With `tune`, unknown learning rates are tuned first.
    """
    folder = out / scale.name
    scale = with_choices(scale, folder)
    if tune:
        scale = _tuned(experiment, scale, folder, train)
    _complete(lambda store: experiment.cells(scale, store), folder, train)
    if experiment.work is not None:
        experiment.work(scale, folder)
    return show(experiment, scale, out)


def show(experiment: Experiment, scale: Scale, out: Path, records: Iterable[Path] = ()) -> View:
    """Return the view of the finished runs below `out` and in `records` (folders, result files); train nothing."""
    folder = out / scale.name
    return experiment.view(with_choices(scale, folder), ResultStore.read([folder, *records]))


def with_choices(scale: Scale, folder: Path) -> Scale:
    """Return the scale with the learning rates tuned in `folder`."""
    fields = ("lr", "finetune_optimizer", "finetune_lr", "source")
    rows = _choices(folder)
    chosen = {(row["network"], row["method"]): TunedRate(**{name: row[name] for name in fields}) for row in rows}
    return scale.changed(rates={**scale.rates, **chosen})


def _choices(folder: Path) -> list[dict[str, Any]]:
    path = folder / "tuning.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def _complete(wanted: Callable[[ResultStore], list[Cell]], folder: Path, train: Train) -> None:
    """Run all missing trainings; repeat, because some depend on the results of others."""
    before: set[str] = set()
    while missing := ResultStore.read([folder]).missing(wanted(ResultStore.read([folder]))):
        keys = {recipe.key() for recipe in missing}
        if keys <= before:
            return  # they failed; the view shows them as not run
        print(f"{len(missing)} trainings to do")
        train(missing, folder / "runs")
        before |= keys


def _tuned(experiment: Experiment, scale: Scale, folder: Path, train: Train) -> Scale:
    """Tune the unknown learning rates of the experiment, write them to tuning.json, and return the scale with them."""
    store = ResultStore.read([folder])
    choices = []
    for network, method, finetuned in to_tune(scale, experiment.cells(scale, store)):
        print(f"tuning {method} on {network}")
        choice = _tune(scale, network, method, finetuned, folder, train)
        if choice is not None:
            choices.append(choice.as_row())
    if choices:
        write_json(folder / "tuning.json", [*_choices(folder), *choices])
    return with_choices(scale, folder)


def _tune(scale: Scale, network: str, method: str, finetuned: bool, folder: Path, train: Train) -> Choice | None:
    failed: set[float] = set()
    while True:
        store = ResultStore.read([folder])
        tried = {**dict.fromkeys(failed, None), **rates_tried(scale, store, network, method)}
        rates = next_rates(tried, scale.grid)
        if not rates:
            break
        train(store.missing(rate_cells(scale, network, method, rates)), folder / "runs")
        failed |= set(rates) - rates_tried(scale, ResultStore.read([folder]), network, method).keys()
    choice = choose(scale, store, network, method, failed=failed)
    if choice is not None and finetuned:
        cells = finetuning_cells(scale, network, method, choice.rate.lr).values()
        train(store.missing(cells), folder / "runs")
        choice = choose(scale, ResultStore.read([folder]), network, method, failed=failed)
    return choice


def all_experiments() -> dict[str, Experiment]:
    """Return the experiments in the order of the paper."""
    # Imported here, because these modules import `Experiment`.
    from reproduce import claims, figures, lottery, tables
    from reproduce.theory import study

    groups = (
        *(tables.EXPERIMENTS, figures.EXPERIMENTS, lottery.EXPERIMENTS),
        *(study.EXPERIMENTS, claims.EXPERIMENTS),
    )
    return {experiment.name: experiment for group in groups for experiment in group}


def find_experiment(name: str) -> Experiment:
    """Return an experiment by name.

    >>> find_experiment("table2").title
    'Table 2: unstructured, against simple methods, with and without fine-tuning'
    """
    experiments = all_experiments()
    if name not in experiments:
        raise UsageError(
            f"unknown item {name!r}.{did_you_mean(name, experiments)} `python -m reproduce` lists them all."
        )
    return experiments[name]
