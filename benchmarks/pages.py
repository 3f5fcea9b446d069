"""Writes all measurements in `results/` as Markdown tables for the documentation and the README.

`python -m benchmarks.pages` updates numbers and picture of README.md; building the documentation writes the rest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import engine_page, headline
from benchmarks.runner import RESULTS, cell
from regrow.report.figures.base import Figure
from regrow.report.figures.costs import COSTS, tradeoff_figure
from regrow.report.published import in_the_paper
from regrow.report.render import write_figures
from regrow.report.tables import LeaderboardRow, Task, leaderboard, make_tasks, percent
from regrow.runs.find import find_runs
from regrow.runs.outcomes import Summary, group
from reproduce.experiments import find_experiment
from reproduce.results import ResultStore
from reproduce.scales import Scale, find_scale
from reproduce.tables import EVERY_METHOD, MethodComparison, machines, mask_updates, periods
from reproduce.views import NOT_RUN, number

ROOT = RESULTS.parent.parent
JPEG = "CIFAR-10 (JPEG q75)"
ENGINE = "resnet20", "wrn28-2", "resnet50"
SERIES = 10  # more curves in one figure cannot be distinguished
WIDEST = 14  # columns that fit on a page
EXISTING = RESULTS.parent / "existing" / "cifar10-resnet8.jsonl"
LEVELS = 0.9, 0.95
SCALES = {
    "ResNet-20, CIFAR-10": ("cpu", RESULTS.parent),
    f"ResNet-8, {JPEG}": ("jpeg", RESULTS.parent / "jpeg"),
    "digits": ("digits", RESULTS.parent / "digits"),
}
TRAININGS = {"": "CIFAR-10", "jpeg": JPEG, "digits": "digits"}
"""Folders of `results/` with trainings, and the data that they call CIFAR-10."""
MARKS = "<!-- measured: python -m benchmarks.pages -->\n", "<!-- /measured -->"


def write_pages(folder: Path) -> None:
    """Write `trainings.md` with its figures, and the other parts of pages that are numbers, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"trainings": trainings(folder), "benchmarks": benchmarks(), "measured": measured()}
    parts |= {
        "closer": closer(folder),
        "engine": engine(),
        "browser": browser(),
        "headline": headline.first_page(),
        "existing": existing(),
    }
    for name, text in parts.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def trainings(folder: Path) -> str:
    """Return every training that was not for tuning: a picture in `folder` and a table per network and data set."""
    parts = []
    for path, data in TRAININGS.items():
        for file in sorted((RESULTS.parent / path).glob("*.jsonl")):
            parts += [_section(task, f"{file.stem}-{task.slug}", data, folder) for task in _tasks(file)]
    return "\n".join(parts)


def _tasks(file: Path) -> list[Task]:
    """Return the trainings of one file: other files have trainings of another length, which no curve may join."""
    runs = find_runs([file])
    return make_tasks(group(runs)[0], runs)


def _section(task: Task, name: str, data: str, folder: Path) -> str:
    figure = _figure(task, name)
    pictures = write_figures([figure], folder, ("svg",)) if figure else []
    shown = "".join(f"![accuracy against sparsity](_generated/{picture.name})\n\n" for picture in pictures)
    lengths = sorted({entry.group.recipe.epochs for entry in task.entries} - {0})
    title = f"{task.title.replace('CIFAR-10', data)} · {' to '.join(map(str, lengths[:1] + lengths[1:][-1:]))} epochs"
    return f"### {title}\n\n{shown}{_training(task)}"


def _figure(task: Task, name: str) -> Figure | None:
    drawn = len(task.series) <= SERIES and len(task.levels) > 1
    found = tradeoff_figure(COSTS[0], task) if drawn else None
    return found and replace(found, name=name)


def _training(task: Task) -> str:
    lines = [
        {
            "": row.label.replace(" %", "\u00a0%"),
            "settings": row.settings,
            "sparsity": _unbroken(row.sparsity),
            "top-1, %": _unbroken(row.top1),
            "seeds": str(row.seeds),
            "epochs": _unbroken(row.epochs),
            "parameters left": _unbroken(row.parameters),
            "MACs left": _unbroken(row.macs),
            "the paper": _published(row),
        }
        for row in leaderboard(task, in_the_paper)
    ]
    idle = [name for name in ("settings", "the paper") if not any(line[name] for line in lines)]
    return markdown([{name: text for name, text in line.items() if name not in idle} for line in lines])


def _unbroken(text: str) -> str:
    """Keep a number and its deviation or share on one line."""
    return text.replace(" ", "\u00a0")


def _published(row: LeaderboardRow) -> str:
    return f"{row.published} ({row.published.scale})" if row.published else ""


def benchmarks() -> str:
    """Return every benchmark in `results/benchmarks`."""
    sections = []
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if not result.get("rows"):
            continue
        machine = result["machine"]
        where = f"{machine['cpu']}, {machine['threads']} of {machine['cores']} threads, torch {machine['torch']}"
        parts: dict[str, list[dict[str, str]]] = {}
        for row in result["rows"]:
            shown = {name: cell(value) for name, value in row.items() if name != "part"}
            parts.setdefault(row.get("part", ""), []).append(shown)
        made = f"`{result['command']}`, {result['date']}, {where}"
        tables = [(f"**{part}**\n\n" if part else "") + narrow(lines) for part, lines in parts.items()]
        sections.append("\n".join([f"### {result['title']}\n\n{made}\n", *tables]))
    return "\n".join(sections)


def browser() -> str:
    """Return speed and size of exported WebAssembly modules: `benchmarks.browser`."""
    result = json.loads((RESULTS / "browser.json").read_text(encoding="utf-8"))
    parts = {part: [row for row in result["rows"] if row["part"] == part] for part in ("speed", "size")}
    lines = [
        {
            "sparsity": f"{100 * row['sparsity']:g} %",
            "onnxruntime-web, ms": cell(row["onnxruntime-web, dense, ms"]),
            "regrow, ms": cell(row["regrow ms"]),
            "times faster": f"{row['times faster']:.1f}",
            **{
                f"{size['weights']}, KB (brotli)": f"{size['KB']:.0f} ({size['brotli KB']:.0f})"
                for size in parts["size"]
                if size["sparsity"] == row["sparsity"]
            },
        }
        for row in parts["speed"]
    ]
    return f"{result['title']}; {result['machine']['cpu']}, {result['date']}.\n\n{markdown(lines)}"


def measured() -> str:
    """Return the most important numbers: first costs, then accuracies."""
    return f"{costs()}\n{accuracies()}"


def costs() -> str:
    """Return the cost of training and the size of files."""
    core, pack = _rows("core"), _rows("pack")
    step = _find(core, measured="ResNet-20 training step, DPF")["ratio"]
    update = _find(core, measured="optimizer step, 25 M weights, DPF")["ratio"]
    refresh = _find(core, measured="mask refresh, 25 M weights, prune_smallest")["ratio"]
    files = [_find(pack, network="resnet50", sparsity=0.95, dtype=dtype) for dtype in ("fp32", "int8")]
    dense, lossless, small = (size / 1e6 for size in (files[0]["dense"], *(row["packed"] for row in files)))
    packed = f"{lossless:.2f} MB lossless, {small:.2f} MB in int8"
    speeds = [_find(_rows("engine-avx2"), part="speed", network=name, batch=1, sparsity=0.95) for name in ENGINE]
    lines = {
        "training step of ResNet-20 with DPF, time / without": f"{step:.2f}",
        "optimizer step alone (fused SGD, 25 M weights), time / without": f"{update:.2f}",
        "new mask for 25 M weights, times faster than `kthvalue`": f"{refresh:.1f}",
        f"ResNet-50 at 95 % as a packed file (dense: {dense:.1f} MB)": packed,
        "ResNet-20, WRN-28-2, ResNet-50 at 95 % in the engine (one image, synthetic masks, AVX2), times faster "
        "than the best dense runtime": ", ".join(f"{row['times faster']:.1f}" for row in speeds),
    }
    return markdown([{"": name, "measured": value} for name, value in lines.items()])


def accuracies() -> str:
    """Return the accuracy of each method, at the scales of the paper's tables that were run here."""
    lines: dict[str, dict[str, str]] = {}
    notes = []
    for title, (name, folder) in SCALES.items():
        scale, store = find_scale(name), ResultStore.read([folder], beside=[RESULTS.parent])
        rows = find_experiment("methods").view(scale, store).rows
        known = [row for row in rows if row["seeds"] and row["sparsity"] in LEVELS]
        for row in rows:
            lines.setdefault(row["method"], {"top-1, %": row["method"]})
        for row in rows:
            if not (row["seeds"] or row.get("diverged")) or row["sparsity"] not in LEVELS:
                continue
            summary = Summary(row["mean"], row["std"], row["seeds"]) if row["seeds"] else None
            found = number(summary, diverged=row.get("diverged", 0))
            lines[row["method"]][f"{title}, {percent(row['sparsity'])} pruned"] = found
        named = MethodComparison(EVERY_METHOD, tuple(scale.places([], LEVELS))).named(scale)
        told = (sizes(known), periods(scale, named), mask_updates(store, named), machines(store, named))
        rates = better_rates(known, partial(_by_rate, scale, store))
        notes += [f"{title}: {note}" for note in (*filter(None, told), *rates)]
    table = markdown([line for line in lines.values() if len(line) > 1])
    said = "ResNet-20: 12 epochs, ResNet-8: 8, digits (500 test images): 15; FT: 2 or 3 more; seeds in brackets."
    rule = "Learning rates were chosen on held-out training images, never on the test images."
    listed = "".join(f"* {note}\n" for note in notes)
    return f"{table}\n{said} {rule}\n\n{listed}"


def closer(folder: Path) -> str:
    """Return accuracy against time, and how much of a mask stays at an update, with pictures in `folder`."""
    scale, store = find_scale("cpu"), ResultStore.read([RESULTS.parent])
    parts = []
    for name, drawn in (("overhead", "overhead-time"), ("dynamics", "dynamics-update-iou")):
        view = find_experiment(name).view(scale, store)
        figures = [figure for figure in view.figures if figure.name.startswith(drawn)]
        write_figures(figures, folder, ("svg",))
        shown = [
            f"![{figure.title}](_generated/{figure.name}.svg)\n\n{figure.title}. {figure.caption}" for figure in figures
        ]
        # Speeds of trainings that ran beside others would look like speeds of methods.
        text = view.text.rpartition("\n\n")[2] if name == "overhead" else view.text
        lines = [line for line in text.splitlines() if f"| {NOT_RUN} |" not in line]
        command = f"`python -m reproduce {name} --scale {scale.name} --show --records results`"
        parts.append("\n\n".join([f"### {view.title}", command, *shown, "\n".join(lines)]))
    return "\n\n".join(parts) + "\n"


def sizes(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the fraction of parameters that is left at each sparsity, and the methods that keep another fraction."""
    told = []
    for level in LEVELS:
        left = {row["method"]: f"{100 * row['parameters_left']:.1f} %" for row in rows if row["sparsity"] == level}
        left.pop("Dense", None)
        if not left:
            continue
        usual = Counter(left.values()).most_common(1)[0][0]
        others = ", ".join(f"{method} {share}" for method, share in left.items() if share != usual)
        told.append(f"at {percent(level)}, {usual} of all parameters are left" + (f" ({others})" if others else ""))
    return "; ".join(told) + "."


def better_rates(
    rows: Iterable[Mapping[str, Any]], by_rate: Callable[[Mapping[str, Any]], Mapping[float, Summary]]
) -> Iterator[str]:
    """List methods whose accuracy is higher with another learning rate than the one chosen on held-out images."""
    for row in rows:
        for lr, top1 in by_rate(row).items():
            if top1.mean > row["mean"]:
                yield (
                    f"{row['method']} at {percent(row['sparsity'])} came to {number(top1)} with a learning rate of "
                    f"{lr:g}; the table has {row['lr']:g}, which was better on the held-out images."
                )


def _by_rate(scale: Scale, store: ResultStore, row: Mapping[str, Any]) -> dict[float, Summary]:
    """Return the accuracy of the trainings of a row by learning rate, for every rate that was run."""
    column = next(column for column in EVERY_METHOD if column.title == row["method"])
    cell = column.cell(scale, (row["network"], row["sparsity"]))
    found: dict[float, list[float]] = {}
    for recipe in cell.recipes:
        for lr, outcome in store.varying(recipe, "lr", finetuned=cell.finetuned).items():
            found.setdefault(lr, []).append(outcome.final["top1"])
    return {lr: Summary.of(values) for lr, values in sorted(found.items())}


def engine() -> str:
    """Return the speed of the engine with its targets, with AVX2 and with AVX-512."""
    parts = []
    for name, title in (("engine-avx2", "With AVX2"), ("engine", "With AVX-512")):
        result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        measured = result["rows"]
        table, told = markdown(engine_page.lines(measured)), engine_page.facts(measured)
        threads = f"{markdown(engine_page.gains(measured))}\n{engine_page.most(measured)}".rstrip()
        parts.append(f"### {title}\n\n{engine_page.heading(result)}\n\n{table}\n{told}\n\n{threads}\n")
    limits = _rows("roofline")
    floors = markdown(engine_page.floors(limits, _rows("engine")))
    return "\n".join([*parts, f"{engine_page.machine(limits)}\n\n{floors}\n"])


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def _find(found: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    return next(row for row in found if all(row.get(name) == value for name, value in wanted.items()))


def markdown(lines: Sequence[dict[str, str]]) -> str:
    """Return `lines` as a table; a column is a key of any line."""
    heads = list(dict.fromkeys(head for line in lines for head in line))
    texts = [heads, ["---"] * len(heads), *([line.get(head, "") for head in heads] for line in lines)]
    return "".join(f"| {' | '.join(text.replace('|', '&#124;') for text in line)} |\n" for line in texts)


def narrow(lines: Sequence[dict[str, str]]) -> str:
    """Return `lines` as one table, or as two of half the width; both begin with the columns that identify a row."""
    heads = list(dict.fromkeys(head for line in lines for head in line))
    if len(heads) <= WIDEST:
        return markdown(lines)
    told = next(
        n for n in range(1, len(heads) + 1) if len({tuple(map(line.get, heads[:n])) for line in lines}) == len(lines)
    )
    half = (len(heads) + told) // 2 + 1
    parts = (heads[:half], heads[:told] + heads[half:])
    return "\n".join(markdown([{head: line.get(head, "") for head in part} for line in lines]) for part in parts)


def existing() -> str:
    """Return the accuracy of a dense network after it is pruned in a quarter of its epochs."""
    rows = [json.loads(line) for line in EXISTING.read_text(encoding="utf-8").splitlines()]
    tested = [row for row in rows if row["evaluated_on"] == "test"]
    ways = {
        "dense": [row for row in tested if row["recipe"]["method"] == "dense"],
        "DPF from the dense network": [row for row in tested if _way(row) == ("dpf", True)],
        "one-shot, then fine-tuning": [row for row in tested if _way(row) == ("oneshot", True)],
        "DPF from scratch": [row for row in tested if _way(row) == ("dpf", False) and row["recipe"]["epochs"] == 2],
        "DPF from scratch, full length": [
            row for row in tested if _way(row) == ("dpf", False) and row["recipe"]["epochs"] > 2
        ],
    }
    return markdown([_existing_line(name, found) for name, found in ways.items() if found])


def _way(row: Mapping[str, Any]) -> tuple[str, bool]:
    return row["recipe"]["method"], row["recipe"]["init"] is not None


def _existing_line(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    recipe = rows[0]["recipe"]
    rate = recipe["lr"] if recipe["epochs"] else recipe["finetune_lr"]
    return {
        "": name,
        "epochs": str(recipe["epochs"] + recipe["finetune_epochs"]),
        "learning rate": f"{rate:g}",
        "weights pruned": f"{100 * Summary.of([row['sparsity'] for row in rows]).mean:.1f} %",
        "test accuracy (seeds)": number(Summary.of([row["top1"] for row in rows])),
    }


def write_readme() -> None:
    """Update the numbers between the marks in README.md, and draw its figure."""
    path = ROOT / "README.md"
    before, rest = path.read_text(encoding="utf-8").split(MARKS[0])
    path.write_text(f"{before}{MARKS[0]}{headline.readme()}{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")
    headline.write_pictures(ROOT / "docs" / "_static")


if __name__ == "__main__":
    write_readme()
