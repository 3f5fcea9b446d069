"""`regrow demo`: compare dense training, pruning afterwards and DPF on digits, in a minute, without a download."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.runs.recipe import Recipe

if TYPE_CHECKING:
    from rich.console import Console

SPARSITY = 0.95
_COMMON = Recipe(
    data="digits",
    model="small",
    sparsity=SPARSITY,
    epochs=25,
    batch=64,
    lr=0.1,
    every="auto",
    ramp_by="step",
    threads=1,
)
RECIPES = {
    "dense": _COMMON.changed(method="dense"),
    "one-shot": _COMMON.changed(method="oneshot", finetune_epochs=5, finetune_lr=0.01),
    "DPF": _COMMON.changed(method="dpf", settle=0.1),
}


@dataclass(frozen=True)
class DemoRow:
    """One line of the comparison."""

    name: str
    epochs: int
    top1: float
    kept: int


def demo(out: Path = Path("runs/demo")) -> int:
    """Train a small network on handwritten digits: dense, pruned afterwards, and pruned during training.

    Args:
        out: Folder for the runs, the sparse model and the figures. Finished runs are not repeated.
    """
    from rich.text import Text

    from regrow.files.packed import save
    from regrow.train.display import make_console
    from regrow.train.run import run

    console = make_console()
    what = "a network of 23,184 convolution weights learns digits"
    pruned = f"then with {100 * SPARSITY:g} % of them pruned"
    console.print(Text.assemble(("regrow demo", "bold"), f": {what}, {pruned}.\n"))
    for name, recipe in RECIPES.items():
        run(recipe, out / name, listeners=[_display(console, name)])
    rows = list(comparison(out))
    packed = out / "digits-dpf.regrow"
    save(out / "DPF", packed)
    console.print(_table(rows))
    _explain(console, rows)
    _show_files(console, out, packed)
    return 0


def comparison(out: Path) -> Iterator[DemoRow]:
    """Yield the lines of the comparison from the finished runs in `out`."""
    from regrow.runs.folder import read_metrics

    for name in ("dense", "one-shot", "DPF"):
        records = read_metrics(out / name)
        result = _result(out / name)
        trained = [record for record in records if record["phase"] == "train"]
        kept = [round(result["targeted"] * (1 - record["sparsity"])) for record in (trained[-1], records[-1])]
        yield DemoRow(name, len(trained), trained[-1]["top1"], kept[0])
        if len(records) > len(trained):
            yield DemoRow(f"{name} + fine-tuning", len(records), records[-1]["top1"], kept[1])


def _result(folder: Path) -> Mapping[str, Any]:
    from regrow.runs.folder import read_result

    result = read_result(folder)
    assert result is not None, "the run has just been completed"
    return result


def _display(console: Console, name: str) -> Any:
    from regrow.train.display import Display
    from regrow.train.events import Event, Finished, Started

    display = Display(console, lines_every=5, tables=False)

    def show(event: Event) -> None:
        if isinstance(event, Started):
            console.print(name, style="bold")
        display(event)
        if isinstance(event, Finished):
            console.print()

    return show


def _table(rows: list[DemoRow]) -> Any:
    from rich.table import Table

    table = Table(
        title="Digits, 500 test images, final epoch, one seed", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("")
    for heading in ("epochs", "top-1", "weights left"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.name, str(row.epochs), f"{row.top1:.1f} %", f"{row.kept:,}")
    return table


def _explain(console: Console, rows: list[DemoRow]) -> None:
    found = {row.name: row for row in rows}
    dense, shot, tuned, dpf = (found[name] for name in ("dense", "one-shot", "one-shot + fine-tuning", "DPF"))
    console.print(
        f"\nPruning the trained network in one shot leaves {shot.top1:.1f} % (chance is 10 %); "
        f"{tuned.epochs - shot.epochs} epochs of fine-tuning bring it to {tuned.top1:.1f} %.\n"
        f"DPF prunes while it trains and lets weights grow back: {dpf.top1:.1f} % against {dense.top1:.1f} % dense, "
        f"in one training of {dpf.epochs} epochs."
    )


def _show_files(console: Console, out: Path, packed: Path) -> None:
    plain = (out / "dense" / "model.safetensors").stat().st_size
    console.print(
        f"\nsparse model  {packed}, {packed.stat().st_size / 1e3:.1f} kB (dense {plain / 1e3:.1f} kB)", soft_wrap=True
    )
    try:
        figures = draw(out)
    except ImportError:
        console.print('figures       need altair: pip install "regrow[report]"')
    else:
        console.print(f"figures       {', '.join(str(path) for path in figures)}", soft_wrap=True)
    next_steps = {
        "regrow train digits --sparsity 0.98": "how far does it go?",
        f"regrow inspect {out / 'DPF'}": "what is left of each layer",
        "regrow recipes": "CIFAR-10 and ImageNet as in the paper",
        "regrow.DPF(model, optimizer, sparsity=ramp, settle=0.1, total_steps=steps)": "the same in your own loop",
    }
    widest = max(map(len, next_steps))
    console.print("\nWhat to try next")
    for command, what in next_steps.items():
        console.print(f"  {command:<{widest}}  {what}", soft_wrap=True)


def draw(out: Path) -> list[Path]:
    """Plot accuracy and sparsity over the epochs of the three runs, and return the files."""
    from regrow.report.render import sections, write_figures
    from regrow.report.tables import make_tasks
    from regrow.runs.find import read_run
    from regrow.runs.outcomes import group

    runs = [read_run(out / name) for name in RECIPES]
    (task,) = make_tasks(group(runs)[0], runs)
    curves = [figure for section in sections(task) for figure in section.figures]
    return write_figures((curve for curve in curves if curve.name in ("accuracy", "sparsity")), out, ("svg", "png"))
