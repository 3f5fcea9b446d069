"""Runs the CIFAR-10 trainings that the pages still need, most valuable first, and writes finished runs to `results/`.

`python -m benchmarks.queue RUNS` trains in folders of RUNS; the same command resumes after an interruption and skips
runs that are in `results/`. A run is recorded as soon as it ends, the search for a lottery ticket at its end. `--list`
shows the missing runs.
`results/queue/start.sh` starts it together with the paper's 300-epoch training, on any machine.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import collect, tuning
from regrow.runs.folder import RunFolderError
from regrow.runs.recipe import Recipe
from regrow.runs.stop import StoppedError
from regrow.sweep import Began, SweepError, Update, run_all
from regrow.train.loop import DivergedError
from reproduce.claims import claims
from reproduce.figures import period_sparsity
from reproduce.lottery import Ticket, retrained, search, tickets
from reproduce.results import Cell, ResultStore
from reproduce.scales import Scale, find_scale
from reproduce.tuning import rate_cells

RESULTS = Path(__file__).parents[1] / "results"
PAPER = RESULTS / "cifar10-resnet20.jsonl"
RESNET8 = RESULTS / "cifar10-resnet8.jsonl"
DYNAMIC = ("rigl", "sparse-momentum", "dsr", "set", "snip", "static", "acdc", "granet")
TUNED = ("dpf", "incremental", "dense", *DYNAMIC, "sfp")
REMEDIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("soft, settle", {"settle": 0.1, "options": ("threshold=soft",)}),
    ("settle", {"settle": 0.1}),
    ("stabilize, settle", {"settle": 0.1, "stabilize": True}),
    ("every=16", {"every": 16}),
)


@dataclasses.dataclass(frozen=True)
class Stage:
    """Trainings that belong together: their purpose, and the file of their records."""

    name: str
    cells: list[Cell]
    file: Path
    ticket: Ticket | None = None
    """The search whose levels the cells are."""

    def left(self) -> list[Recipe]:
        """Return the recipes without a record."""
        return ResultStore.read([self.file]).missing(self.cells)

    def lacking(self) -> list[Recipe]:
        """Return the recipes without a record whose mask is missing: records have no masks, only run folders have."""
        return [each for each in self.left() if each.masks and not (Path(each.masks) / "recipe.toml").is_file()]

    def __str__(self) -> str:
        """Return how much is left to train, and what that needs."""
        known = {recipe.key() for cell in self.cells for recipe in cell.recipes}
        unknown = sum(not cell.recipes for cell in self.cells)  # what they start from is not trained yet
        text = f"{self.name}: {len(self.left()) + unknown} of {len(known) + unknown} left"
        levels = dict.fromkeys(each.sparsity_title for each in self.lacking())
        return f"{text}; needs the run folders of DPF at {', '.join(levels)} in RUNS" if levels else text


def stages(runs: Path | None = None) -> Iterator[Stage]:
    """Yield the stages in order of value; later ones use the learning rates that earlier ones choose.

    DPF's masks are trained again if DPF was trained in `runs`, because records have no masks.
    """
    small = find_scale("small").changed(rates={})
    assert small.stand_in is not None
    network = small.stand_in.model
    wanted = [cell for method in TUNED for cell in rate_cells(small, network, method, small.grid)]
    yield Stage("learning rates", wanted, tuning.runs_file(small))
    scale, file = find_scale("cpu"), RESULTS / "cifar10-resnet20-cpu.jsonl"
    first, second = (scale.changed(seeds=(seed,)) for seed in (0, 1))
    yield Stage("the dense network", [first.cell("resnet20", "dense")], file)
    # At 95 % the methods differ most, so all of them are compared there first.
    yield Stage("the paper's comparison at 95%", _finetuned(first, 0.95), file)
    yield Stage("dynamic baselines at 95%", _pruned(first, DYNAMIC, 0.95), file)
    yield Stage("beyond the paper at 95 %, seed 0", _remedies(first, 0.95), file)
    for seed in (0, 1):  # of a network that trains in two minutes, all claims
        yield from _claims(find_scale("small").changed(seeds=(seed,)), runs)
    yield Stage("the paper's comparison at 90%", _finetuned(first, 0.9), file)
    cells = [second.cell("resnet20", "dense"), *_finetuned(second, 0.95), *_finetuned(second, 0.9)]
    yield Stage("the paper's comparison, seed 1", cells, file)
    yield Stage("dynamic baselines at 90%", _pruned(first, DYNAMIC, 0.9), file)
    yield Stage("beyond the paper at 95 %, seed 1", _remedies(second, 0.95), file)
    for level in (0.9, 0.98):
        yield Stage(f"beyond the paper at {level:.0%}", _remedies(first, level), file)
    filters = [
        first.cell("resnet20", method, ratio, **({"unit": "filter"} if method == "dpf" else {}))
        for ratio in (0.3, 0.5)
        for method in ("dpf", "sfp")
    ]
    yield Stage("whole filters", filters, file)
    yield Stage("steps between masks", list(period_sparsity(first).cells.values()), file)
    here = ResultStore.read([file, *([runs] if runs else [])])
    again = [
        retrained(first, here, ("resnet20", level), "weight", kind, "same epochs")
        for level in (0.9, 0.95)
        for kind in ("own weights", "fresh weights")
    ]
    yield Stage("DPF's masks, trained again", again, file)
    for level in (0.95, 0.9):
        yield Stage(f"dynamic baselines at {level:.0%}, seed 1", _pruned(second, DYNAMIC, level), file)
    cells = [paper_cell("dpf", 0.95), paper_cell("dense")]
    yield Stage("the paper's 300 epochs, beside DPF at 90 %", cells, PAPER)


def _claims(scale: Scale, runs: Path | None) -> Iterator[Stage]:
    """Yield what the claims at a scale need: the trainings, those of the masks that they found, a lottery ticket."""
    name = f"the claims on ResNet-8, seed {scale.seeds[0]}"
    for what in ("", ": masks trained again"):
        here = ResultStore.read([RESNET8, *([runs] if runs else [])])
        cells = [cell for claim in claims(scale, here) for cell in claim.cells]
        yield Stage(name + what, [scale.cell("resnet8", "dense"), *cells], RESNET8)
    [ticket] = tickets(scale)
    yield Stage(f"{name}: lottery ticket", [Cell((ticket.level(each),)) for each in ticket.levels], RESNET8, ticket)


def paper_cell(method: str, level: float | None = None) -> Cell:
    """Return a training with the paper's protocol, in the fastest memory format on one thread."""
    scale = find_scale("paper").changed(seeds=(0,))
    return scale.cell("resnet20", method, level, every=16, channels_last=True, threads=1)


def _finetuned(scale: Scale, level: float) -> list[Cell]:
    """DPF, Incremental and one-shot with fine-tuning; the accuracy before it is in the same run."""
    return [scale.cell("resnet20", method, level, finetuned=True) for method in ("dpf", "incremental", "oneshot")]


def _pruned(scale: Scale, methods: tuple[str, ...], level: float) -> list[Cell]:
    return [scale.cell("resnet20", method, level) for method in methods]


def _remedies(scale: Scale, level: float) -> list[Cell]:
    cells = [scale.cell("resnet20", "dpf", level, **fields) for _, fields in REMEDIES]
    return [*cells, *_pruned(scale, ("dpf", "incremental"), level)]


def work(runs: Path, workers: int) -> bool:
    """Train stage after stage and record each run as soon as it ends; return whether all runs could be trained."""
    complete = True
    for stage in stages(runs):
        if lacking := stage.lacking():
            print(stage, flush=True)
            complete = False
        if not (left := [each for each in stage.left() if each not in lacking]):
            continue
        print(f"{stage.name}: {len(left)} trainings", flush=True)
        try:
            if stage.ticket is not None:
                levels = search(stage.ticket, runs / "tickets")
                collect.add([collect.record(folder) for folder in levels], stage.file)
                continue
            run_all(left, runs, workers=workers, listener=partial(_record, stage.file))
        except (SweepError, DivergedError) as error:
            print(error, flush=True)
            complete = complete and not stage.left()  # what diverged has a record
        if stage.file.parent == tuning.FOLDER:
            if stage.left():
                return False  # later stages use the choices
            tuning.main([])
    return complete


def _record(file: Path, event: Began | Update) -> None:
    """Write the runs that an event shows to have ended into `file`."""
    if isinstance(event, Update) and event.state not in ("finished", "failed"):
        return
    for job in event.jobs if isinstance(event, Began) else [event.job]:
        with suppress(RunFolderError, FileNotFoundError):  # a damaged folder, which the sweep reports as failed
            if collect.ended(job.folder) is not None:
                collect.add([collect.record(job.folder)], file)
                print(f"  recorded {job.folder.name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="?", help="folder for the run folders")
    parser.add_argument("--workers", type=int, default=1, help="trainings at a time")
    parser.add_argument("--list", action="store_true", help="show the missing runs and train nothing")
    options = parser.parse_args()
    if options.list or options.runs is None:
        for stage in stages(options.runs):
            print(stage)
        return
    try:
        complete = work(options.runs, options.workers)
    except StoppedError as stopped:
        raise SystemExit(f"{stopped}. The same command continues.") from None
    if not complete:
        raise SystemExit("Some runs failed or need another one, see above. The same command tries them again.")


if __name__ == "__main__":
    main()
