"""`regrow reproduce`: the paper's tables, figures and theorems as commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from regrow.train.config import Device, Recipe, RecipeError

if TYPE_CHECKING:
    from regrow.paper.cells import Library
    from regrow.paper.item import Item
    from regrow.paper.reproduce import Train
    from regrow.paper.scales import Scale


def reproduce(
    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="ITEM")] = None,
    *,
    scale: Literal["paper", "cpu", "small", "digits", "smoke"] = "cpu",
    seeds: int | None = None,
    out: Path = Path("runs/reproduce"),
    workers: int | None = None,
    on: Literal["local", "ray", "slurm"] = "local",
    device: Device | None = None,
    tune: bool = True,
    show: bool = False,
    records: tuple[Path, ...] = (),
) -> int:
    """Reproduce a table, a figure or a theorem of the paper; without ITEM, list them: `regrow reproduce table2`.

    What is finished is never repeated, and what was interrupted goes on. The table comes out as Markdown and JSON with
    the paper's numbers beside ours, figures as SVG and PNG; what was not run is named so.

    Args:
        name: What to reproduce, or `all`.
        scale: The paper's own protocol; scaled down on CIFAR-10 for CPUs; on digits; or just to see that it runs.
        seeds: Trainings behind each number. None: 3; on digits 5, at scale smoke 1.
        out: Folder for run folders, tables and figures.
        workers: Trainings at the same time. None: as many as there are processors, and one if they take seconds.
        on: Processes on this machine, a Ray cluster, or SLURM.
        device: cpu, cuda or mps. None: as the recipes say, which is cuda for ImageNet and cpu for all others.
        tune: Tune the learning rate of methods for which none is known, on held-out training images.
        show: Train nothing; make the table from what is finished in OUT and in RECORDS.
        records: More run folders, or files of results (JSON lines), for --show.
    """
    from regrow.paper.items import all_items, find_item
    from regrow.train.signals import StoppedError

    chosen = _scale(scale, seeds, device)
    if name is None:
        _list(chosen)
        return 0
    train = _Trainer(chosen, workers, on)
    try:
        for item in all_items().values() if name == "all" else [find_item(name)]:
            _make(item, chosen, out, train, tune=tune, show_only=show, records=records)
    except StoppedError as stopped:
        print(f"regrow: {stopped}, all saved. Go on with the same command.", file=sys.stderr)
        return 128 + stopped.signal
    return 1 if train.failed else 0


def _scale(name: str, seeds: int | None, device: Device | None) -> Scale:
    from regrow.paper.scales import find_scale

    if seeds is not None and seeds < 1:
        raise RecipeError(f"seeds must be at least 1, got {seeds}")
    scale = find_scale(name).changed(device=device)
    return scale if seeds is None else scale.changed(seeds=tuple(range(seeds)))


def _make(
    item: Item, scale: Scale, out: Path, train: Train, *, tune: bool, show_only: bool, records: tuple[Path, ...]
) -> None:
    from regrow.paper.reproduce import reproduce, show

    view = show(item, scale, out, records) if show_only else reproduce(item, scale, out, train=train, tune=tune)
    print(view.markdown())
    print("\n".join(map(str, view.write(out / scale.name))))


class _Trainer:
    """Runs recipes: side by side in processes of their own, or here where they take seconds. Failures are counted."""

    def __init__(self, scale: Scale, workers: int | None, on: str) -> None:
        self.failed = 0
        self._here = workers is None and on == "local" and scale.minutes is not None and scale.minutes < 1
        self._workers, self._on = workers, on

    def __call__(self, recipes: Sequence[Recipe], folder: Path) -> None:
        from regrow.sweep import SweepError

        try:
            self._train_here(recipes, folder) if self._here else self._train(recipes, folder)
        except SweepError as error:
            self.failed += len(error.failed)
            print(f"regrow: {error}", file=sys.stderr)

    def _train(self, recipes: Sequence[Recipe], folder: Path) -> None:
        from regrow.sweep import Resources, run_all
        from regrow.sweep.display import Board

        board = Board()
        try:
            gpus = int(any(recipe.device == "cuda" for recipe in recipes))
            run_all(recipes, folder, workers=self._workers, on=self._on, resources=Resources(gpus=gpus), listener=board)
        finally:
            board.close()

    def _train_here(self, recipes: Sequence[Recipe], folder: Path) -> None:
        from regrow.sweep import SweepError
        from regrow.train.loop import DivergedError
        from regrow.train.run import run

        failed = {}
        for recipe in recipes:
            place = folder / f"{recipe.name()}-{recipe.key()[:8]}"
            try:
                run(recipe, place)
            except DivergedError as error:
                failed[place] = str(error)
        if failed:
            raise SweepError(failed, len(recipes))


def _list(scale: Scale) -> None:
    from regrow.paper.cells import Library
    from regrow.paper.items import all_items

    items = all_items()
    width = max(map(len, items))
    print(f"Scale {scale.name}: {scale.about}, {len(scale.seeds)} seeds.\n")
    for item in items.values():
        print(f"{item.name:<{width}}  {item.title}\n{'':<{width}}  {_cost(item, scale, Library())}")
    print("\nregrow reproduce ITEM runs one at --scale paper, cpu, digits or smoke; with --show it trains nothing.")


def _cost(item: Item, scale: Scale, nothing: Library) -> str:
    """Return what an item costs when nothing is there yet; items share runs."""
    from regrow.train.text import duration

    lacking = nothing.lacking(item.cells(scale, nothing))
    said = []
    if lacking:
        epochs = sum(recipe.epochs + recipe.finetune_epochs for recipe in lacking)
        said.append(f"{len(lacking)} trainings, {epochs:,} epochs")
        if scale.minutes is not None:
            said[0] += f", about {duration(60 * scale.minutes * len(lacking))} on one core"
    return "; ".join([*said, *([item.cost] if item.cost else [])])
