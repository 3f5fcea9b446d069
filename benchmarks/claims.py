"""Writes docs/claims.md: the paper's claims with what `results/` says about them.

`python -m benchmarks.claims`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import JPEG
from regrow.report.tables import make_tasks, plus_minus
from regrow.runs.find import find_runs
from regrow.runs.outcomes import group
from reproduce.claims import OPEN, RULE, TITLE, Claim, claims
from reproduce.experiments import find_experiment
from reproduce.results import ResultStore
from reproduce.scales import Scale, find_scale
from reproduce.tables import explained
from reproduce.views import table

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "claims.md"
LONG = RESULTS / "cifar10-resnet20.jsonl"
TABLES = ("methods", "table6", "table5", "lottery", "width", "period-batch")


def page() -> str:
    """Return the page."""
    store = ResultStore.read([RESULTS, RESULTS / "digits"])
    scales = {"CIFAR-10, ResNet-8": find_scale("jpeg"), "digits": find_scale("digits")}
    found = {title: claims(scale, store) for title, scale in scales.items()}
    lines = [[row[0].title, *_verdicts(row)] for row in zip(*found.values(), strict=True)]
    parts = [f"# {TITLE}", INTRODUCTION, table(["claim", *found], lines), RULE, _long()]
    for title, scale in scales.items():
        mine = [claim for claim in found[title] if scale.name == "jpeg" or claim not in found["CIFAR-10, ResNet-8"]]
        parts += [f"## On {title}", explained(scale), *map(_evidence, mine), _rates(scale.name)]
        parts += [_table(name, scale, store) for name in TABLES]
    text = "\n\n".join(part.strip() for part in parts if part)
    return text.replace("CIFAR-10,", f"{JPEG},") + "\n"


INTRODUCTION = f"""
What the paper claims, beside what trainings on two CPU cores show: ResNet-8 on {JPEG} for 8 epochs, and a network of
three convolutions on the digits that come with the package. These are far smaller than the paper's, so a claim that is
not reproduced here is not refuted. Nothing on this page is typed by hand: `python -m benchmarks.claims` makes it from
`results/`, and [reproduce](reproduce.md) says how to run more.
"""


def _verdicts(row: Sequence[Claim]) -> list[str]:
    """Return the verdicts at every scale; what has nothing to do with the scale is said once."""
    same = len(set(row)) == 1 and row[0].verdict != OPEN
    return [row[0].verdict, *("–" for _ in row[1:])] if same else [claim.verdict for claim in row]


def _evidence(claim: Claim) -> str:
    """Return a claim with its evidence; a table of nothing but what was not run says nothing."""
    return "" if claim.verdict == OPEN else f"### {claim.title}\n\n**{claim.verdict}**\n\n{claim.evidence}"


def _table(name: str, scale: Scale, store: ResultStore) -> str:
    """Return an item's table, or nothing where less than half of it was run."""
    view = find_experiment(name).view(scale, store)
    if 2 * sum(row.get("mean") is not None for row in view.rows) < len(view.rows):
        return ""
    command = f"python -m reproduce {name} --scale {scale.name} --show --records results results/digits"
    return f"### {view.title}\n\n`{command}`\n\n{view.text}"


def _long() -> str:
    """Return the trainings of the paper's own network."""
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
    return f"## The paper's network, trained briefly\n\n{table(head, lines)}\n\n{said}"


def _rates(scale: str) -> str:
    """Return the learning rates that were tried, and those that were chosen."""
    path = RESULTS / "tuning" / "choices.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    rows = [row for row in rows if row["scale"] == scale]
    if not rows:
        return ""
    lines = [
        [row["method"], f"{row['lr']:g}", _tried(row), "yes" if row["at_edge"] else "no", _finetuning(row)]
        for row in rows
    ]
    head = ["method", "chosen", "held-out top-1 by learning rate", "at an edge", "fine-tuning"]
    note = f"Chosen on {rows[0]['source']} with a seed of its own, at 90 % (SFP: 40 % of the filters)."
    return (
        f"### Learning rates\n\n{table(head, lines)}\n\n{note} A rate at an edge of what was tried may not be the best."
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
