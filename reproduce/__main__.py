"""`python -m reproduce`: the paper's tables, figures and theorems as commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from regrow.cli.errors import explain
from regrow.runs.recipe import Device, Recipe, UsageError
from regrow.runs.stop import StoppedError
from regrow.sweep import Resources, SweepError, run_all
from regrow.sweep.display import SweepDisplay
from regrow.text import duration
from regrow.train.loop import DivergedError
from regrow.train.run import run
from reproduce import experiments
from reproduce.experiments import Experiment, all_experiments, find_experiment
from reproduce.results import ResultStore
from reproduce.scales import Scale, ScaleName, find_scale


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in `arguments` (by default those of the process) and exit with its code."""
    try:
        sys.exit(call(sys.argv[1:] if arguments is None else arguments))
    except Exception as error:
        sys.exit(explain(error))


def call(arguments: Sequence[str]) -> int:
    """Run the command in `arguments` and return its exit code."""
    code: int = tyro.cli(reproduce, prog="python -m reproduce", args=list(arguments))
    return code


def reproduce(
    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="ITEM")] = None,
    *,
    scale: ScaleName = "cpu",
    seeds: int | None = None,
    out: Path = Path("runs/reproduce"),
    workers: int | None = None,
    on: Literal["local", "ray", "slurm"] = "local",
    device: Device | None = None,
    tune: bool = True,
    show: bool = False,
    records: tuple[Path, ...] = (),
) -> int:
    """Reproduce a table, a figure or a theorem of the paper; without ITEM, list them: `python -m reproduce table2`.

    Finished runs are never repeated, and interrupted ones resume. Tables are written as Markdown and JSON with the
    paper's numbers next to ours, figures as SVG and PNG; missing results are marked "not run".

    Args:
        name: The item to reproduce, or `all`.
        scale: Size of the experiments. paper: the paper's own protocol; cpu and small: CIFAR-10, scaled down for CPUs;
            jpeg: a JPEG copy of CIFAR-10, for older records; digits: the digits of the package; smoke: a quick test.
        seeds: Number of training runs behind each number, one per seed. None: 3; on digits 5, at scale smoke 1.
        out: Folder for run folders, tables and figures.
        workers: Number of training runs in parallel. None: one per processor, or one if they take seconds.
        on: Processes on this machine, a Ray cluster, or SLURM.
        device: cpu, cuda or mps. None: as in the recipes, which is cuda for ImageNet and cpu for all others.
        tune: Tune the learning rate of methods for which none is known, on held-out training images.
        show: Train nothing; make the table from finished runs in OUT and in RECORDS.
        records: More run folders, or files of results (JSON Lines), for --show.
    """
    chosen = _scale(scale, seeds, device)
    if name is None:
        _list(chosen)
        return 0
    train = _Trainer(chosen, workers, on)
    try:
        for experiment in all_experiments().values() if name == "all" else [find_experiment(name)]:
            if show:
                view = experiments.show(experiment, chosen, out, records)
            else:
                view = experiments.reproduce(experiment, chosen, out, train=train, tune=tune)
            print(view.markdown())
            print("\n".join(map(str, view.write(out / chosen.name))))
    except StoppedError as stopped:
        print(f"reproduce: {stopped}, all saved. Resume with the same command.", file=sys.stderr)
        return 128 + stopped.signal
    return 1 if train.failed else 0


def _scale(name: str, seeds: int | None, device: Device | None) -> Scale:
    if seeds is not None and seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {seeds}")
    scale = find_scale(name).changed(device=device)
    return scale if seeds is None else scale.changed(seeds=tuple(range(seeds)))


class _Trainer:
    """Trains recipes in parallel processes, or in this process if they take seconds; counts failures."""

    def __init__(self, scale: Scale, workers: int | None, on: str) -> None:
        self.failed = 0
        self._here = workers is None and on == "local" and scale.minutes is not None and scale.minutes < 1
        self._workers, self._on = workers, on

    def __call__(self, recipes: Sequence[Recipe], folder: Path) -> None:
        try:
            self._train_here(recipes, folder) if self._here else self._train(recipes, folder)
        except SweepError as error:
            self.failed += len(error.failed)
            print(f"reproduce: {error}", file=sys.stderr)

    def _train(self, recipes: Sequence[Recipe], folder: Path) -> None:
        display = SweepDisplay()
        gpus = int(any(recipe.device == "cuda" for recipe in recipes))
        resources = Resources(gpus=gpus)
        try:
            run_all(recipes, folder, workers=self._workers, on=self._on, resources=resources, listener=display)
        finally:
            display.close()

    def _train_here(self, recipes: Sequence[Recipe], folder: Path) -> None:
        failed = {}
        for recipe in recipes:
            place = folder / recipe.folder_name()
            try:
                run(recipe, place)
            except DivergedError as error:
                failed[place] = str(error)
        if failed:
            raise SweepError(failed, len(recipes))


def _list(scale: Scale) -> None:
    experiments = all_experiments()
    width = max(map(len, experiments))
    print(f"Scale {scale.name}: {scale.about}, {len(scale.seeds)} seeds.\n")
    for experiment in experiments.values():
        print(f"{experiment.name:<{width}}  {experiment.title}\n{'':<{width}}  {_cost(experiment, scale)}")
    print("\npython -m reproduce ITEM runs one; --scale chooses its size; --show trains nothing.")


def _cost(experiment: Experiment, scale: Scale) -> str:
    """Return the cost of an experiment without any finished runs; experiments share runs."""
    nothing = ResultStore()
    missing = nothing.missing(experiment.cells(scale, nothing))
    costs = []
    if missing:
        epochs = sum(recipe.epochs + recipe.finetune_epochs for recipe in missing)
        costs.append(f"{len(missing)} trainings, {epochs:,} epochs")
        if scale.minutes is not None:
            costs[0] += f", about {duration(60 * scale.minutes * len(missing))} on one core"
    return "; ".join([*costs, *([experiment.cost] if experiment.cost else [])])


if __name__ == "__main__":
    main()
