"""Writes docs/claims.md: the paper's claims with what `results/` says about them.

`python -m benchmarks.claims`
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.pages import JPEG
from regrow.paper.cells import Library
from regrow.paper.items import find_item
from regrow.paper.scales import find_scale
from regrow.paper.views import table
from regrow.report.outcomes import group
from regrow.report.runs import find_runs
from regrow.report.tasks import make_tasks
from regrow.report.text import plus_minus

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "claims.md"
LONG = RESULTS / "cifar10-resnet20.jsonl"
TABLES = ("methods", "table6", "table5", "lottery", "width", "period-batch")


def page() -> str:
    """Return the page."""
    scale, library = find_scale("cpu"), Library.read([RESULTS])
    claims = find_item("claims").view(scale, library)
    parts = [f"# {claims.title}", INTRODUCTION, claims.text, _long(), _rates()]
    for name in TABLES:
        view = find_item(name).view(scale, library)
        if any(row.get("mean") is not None for row in view.rows):
            parts.append(f"## {view.title}\n\n`regrow reproduce {name} --show --records results`\n\n{view.text}")
    text = "\n\n".join(part.strip() for part in parts if part)
    return text.replace("CIFAR-10,", f"{JPEG},") + "\n"


INTRODUCTION = f"""
What the paper claims, beside what trainings on two CPU cores show. The networks and trainings here are far smaller than
the paper's, so a claim that is not reproduced here is not refuted. The images are {JPEG}. Nothing on this page is typed
by hand: `python -m benchmarks.claims` makes it from `results/`, and [reproduce](reproduce.md) says how to run more.
"""


def _long() -> str:
    """Return the longest trainings, of the paper's own network."""
    if not LONG.is_file():
        return ""
    runs = find_runs([LONG])
    lines = [
        [
            entry.label,
            str(entry.group.recipe.epochs),
            plus_minus(entry.group.summary("top1")),
            str(len(entry.group.outcomes)),
        ]
        for task in make_tasks(group(runs)[0], runs)
        for entry in task.entries
    ]
    head = ["ResNet-20", "epochs", "top-1", "seeds"]
    said = "The paper trains for 300 epochs: dense 92.48, DPF 90.88 at 90 % and 88.01 at 95 %."
    return f"## The paper's network, trained longer\n\n{table(head, lines)}\n\n{said}"


def _rates() -> str:
    """Return the learning rates that were tried, and those that were chosen."""
    path = RESULTS / "tuning" / "choices.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    if not rows:
        return ""
    lines = [
        [row["method"], f"{row['lr']:g}", _tried(row), "yes" if row["at_edge"] else "no", _finetuning(row)]
        for row in rows
    ]
    head = ["method", "chosen", "held-out top-1 by learning rate", "at an edge", "fine-tuning"]
    note = "Chosen on 5,000 held-out training images with a seed of its own, at 90 % (SFP: 40 % of the filters)."
    return (
        f"## Learning rates\n\n{table(head, lines)}\n\n{note} A rate at an edge of what was tried may not be the best."
    )


def _tried(row: dict[str, list[dict[str, float | None]]]) -> str:
    return ", ".join(f"{each['lr']:g}: {_or_failed(each['top1'])}" for each in row["tried"])


def _finetuning(row: dict[str, list[dict[str, float | None]]]) -> str:
    return (
        ", ".join(f"{each['candidate']}: {_or_failed(each['top1'])}" for each in row["finetuning"])
        or "as in the recipe"
    )


def _or_failed(top1: float | None) -> str:
    return "failed" if top1 is None else f"{top1:.2f}"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
