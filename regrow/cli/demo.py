"""`regrow demo`: compare dense training, pruning afterwards and DPF on digits, in a minute, without a download."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.runs.recipe import Recipe
from regrow.text import install_hint

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
    ramp_by="step",
    threads=1,
)
RECIPES = {
    "dense": _COMMON.changed(method="dense"),
    "one-shot": _COMMON.changed(method="oneshot", finetune_epochs=5, finetune_lr=0.01),
    # The settings that the documentation recommends.
    "DPF": _COMMON.changed(method="dpf", settle=0.1),
}


@dataclass(frozen=True)
class DemoRow:
    """One line of the comparison."""

    name: str
    top1: float
    sparsity: float
    kept: int
    epochs: int


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
    files = {"dense": out / "dense" / "model.safetensors"}
    for name in ("one-shot", "DPF"):
        files[name] = out / f"digits-{name.lower()}.regrow"
        save(out / name, files[name])
    console.print(_table(rows))
    _explain(console, rows)
    _show_files(console, out, files)
    return 0


def comparison(out: Path) -> Iterator[DemoRow]:
    """Yield the lines of the comparison from the finished runs in `out`."""
    from regrow.runs.folder import read_metrics, read_result

    for name in ("dense", "one-shot", "DPF"):
        records = read_metrics(out / name)
        targeted = (read_result(out / name) or {})["targeted"]
        trained = [record for record in records if record["phase"] == "train"]
        yield _row(name, trained, targeted)
        if len(records) > len(trained):
            yield _row(f"{name} + fine-tuning", records, targeted)


def _row(name: str, records: Sequence[Mapping[str, Any]], targeted: int) -> DemoRow:
    last = records[-1]
    return DemoRow(name, last["top1"], last["sparsity"], round(targeted * (1 - last["sparsity"])), len(records))


def _display(console: Console, name: str) -> Any:
    from regrow.train.display import Display
    from regrow.train.events import Event, Finished, Started

    display, trained = Display(console, lines_every=5, tables=False), False

    def show(event: Event) -> None:
        nonlocal trained
        if isinstance(event, Started):
            trained = True
            console.print(name, style="bold")
        display(event)
        if isinstance(event, Finished):
            console.print("" if trained else f"{name}: finished run found, not repeated")

    return show


def _table(rows: list[DemoRow]) -> Any:
    from rich.table import Table

    table = Table(
        title="Digits, 500 test images, final epoch, one seed", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("")
    for heading in ("accuracy", "sparsity", "weights left", "epochs"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.name, f"{row.top1:.1f} %", f"{100 * row.sparsity:.0f} %", f"{row.kept:,}", str(row.epochs))
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


def _show_files(console: Console, out: Path, files: Mapping[str, Path]) -> None:
    size, plain = (files[name].stat().st_size / 1e3 for name in ("DPF", "dense"))
    console.print(f"\nsparse model  {files['DPF']}, {size:.1f} kB (dense {plain:.1f} kB)", soft_wrap=True)
    try:
        figures = draw(out, files)
    except ImportError:
        console.print(f"picture       needs altair: {install_hint('report')}")
    else:
        console.print(f"picture       {', '.join(str(path) for path in figures)}", soft_wrap=True)
    next_steps = {
        "regrow train digits --sparsity 0.98": "prune more",
        f"regrow inspect {out / 'DPF'}": "non-zero weights of each layer",
        "regrow recipes": "CIFAR-10 and ImageNet as in the paper",
        f"regrow report {out}": "these runs as one HTML page",
        "regrow.DPF(model, optimizer, sparsity=ramp, settle=0.1, total_steps=steps)": "in your own loop",
    }
    widest = max(map(len, next_steps))
    console.print("\nWhat to try next")
    for command, what in next_steps.items():
        console.print(f"  {command:<{widest}}  {what}", soft_wrap=True)


def draw(out: Path, files: Mapping[str, Path]) -> list[Path]:
    """Plot the accuracy of the three runs over the epochs, and return the figures; `files` are their models."""
    from regrow.report.figures.base import Figure, finish
    from regrow.report.render import write_figures
    from regrow.runs.folder import read_metrics

    rows = _points({name: read_metrics(out / name) for name in RECIPES}, files)
    trained, tuned = RECIPES["dense"].epochs, RECIPES["one-shot"].finetune_epochs
    pruned = f"{100 * SPARSITY:g} % of the weights pruned"
    caption = f"Top-1 accuracy on 500 test images; {pruned}. Shaded: fine-tuning of the one-shot model."
    spec = finish(_picture(trained, trained + tuned), rows, height=_HEIGHT)
    return write_figures([Figure("accuracy", f"Digits, {pruned}", caption, caption, spec)], out, ("svg", "png"))


_AXIS, _HEIGHT = (0.0, 100.0), 300


def _points(records: Mapping[str, Sequence[Mapping[str, Any]]], files: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return a row for each epoch of each run; the last one has a label with accuracy and file size."""
    from regrow.report.figures.base import label_places

    ends = {name: found[-1]["top1"] for name, found in records.items()}
    titles = {name: f"{name} + FT" if RECIPES[name].finetune_epochs else name for name in records}
    places = label_places(ends, *_AXIS, height=_HEIGHT)
    return [
        {
            "series": name,
            "epoch": record["epoch"],
            "top1": record["top1"],
            "text": f"{record['top1']:.1f} %",
            "end": f"{titles[name]} {ends[name]:.1f} %, {files[name].stat().st_size / 1e3:.0f} kB",
            "place": places[name],
            "last": record is found[-1],
        }
        for name, found in records.items()
        for record in found
    ]


def _picture(trained: int, tuned: int) -> Any:
    """Return the chart of `tuned` epochs, of which those after `trained` are shaded."""
    from regrow.report.figures.base import altair, new_chart

    alt = altair()
    scale = alt.Scale(domain=[1, tuned], nice=False)
    axis = alt.Axis(grid=False, tickMinStep=1)
    x = alt.X("epoch:Q", title="epoch", scale=scale, axis=axis)
    y = alt.Y("top1:Q", title="top-1, %", scale=alt.Scale(domain=list(_AXIS)))
    place = alt.Y("place:Q", title="top-1, %")
    color = alt.Color("series:N", scale=alt.Scale(domain=list(RECIPES)), legend=None)
    base = new_chart().encode(color=color)
    tuning = new_chart().transform_filter(f"datum.epoch == {tuned}").transform_calculate(start=f"{trained}")
    start = alt.X("start:Q", title="epoch", scale=scale)
    ended = base.transform_filter("datum.last").transform_calculate(edge=f"{tuned}")
    shot = base.transform_filter(f"datum.series == 'one-shot' && datum.epoch == {trained}")
    return alt.layer(
        tuning.mark_rect(opacity=0.12, color="gray").encode(x=start, x2="epoch"),
        tuning.mark_text(
            align="left", baseline="bottom", angle=270, dx=5, dy=-4, y=_HEIGHT, text="fine-tuning (FT)", fontSize=12
        ).encode(x=x),
        # Until it is pruned, the one-shot model is the dense one: its line shows on both sides of that line.
        *(
            base.transform_filter(f"datum.series == '{name}'").mark_line(strokeWidth=width).encode(x=x, y=y)
            for name, width in (("one-shot", 5), ("dense", 2), ("DPF", 2.5))
        ),
        ended.mark_rule(strokeDash=[2, 3]).encode(x=x, x2="edge:Q", y=y),
        ended.mark_text(align="left", dx=8, fontSize=12, x=alt.ExprRef("width")).encode(y=place, text="end:N"),
        shot.transform_calculate(said="'pruned in one shot: ' + datum.text")
        .mark_text(align="right", dx=-8, fontSize=12)
        .encode(x=x, y=y, text="said:N"),
    )
