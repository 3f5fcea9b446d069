"""Writes docs/claims.md and the evidence on each network (`PARTS`): the paper's claims and what `results/` says.

`python -m benchmarks.claims`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import JPEG
from regrow.report.published import in_the_paper
from regrow.report.tables import leaderboard, make_tasks, percent
from regrow.runs.find import find_runs
from regrow.runs.outcomes import Group, group
from reproduce.claims import OPEN, RULE, TITLE, Claim, claims
from reproduce.experiments import find_experiment
from reproduce.results import ResultStore, cpus
from reproduce.scales import find_scale
from reproduce.tables import (
    EVERY_METHOD,
    PROTOCOL,
    MethodComparison,
    explained,
    machines,
    mask_updates,
    periods,
    printed,
)
from reproduce.views import NOT_RUN, accuracy, table

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
PAPERS_NETWORK = "cifar10-resnet20*.jsonl"
TABLES = ("table6", "table5", "lottery", "width", "period-batch", "compressors")
LEVELS = 0.9, 0.95


def pages() -> dict[str, str]:
    """Return the pages by name: one table of all claims, and the evidence on each data set."""
    stores = {name: part.store() for name, part in PARTS.items()}
    found = {name: claims(find_scale(part.scale), stores[name]) for name, part in PARTS.items()}
    rows = list(zip(*found.values(), strict=True))
    lines = [[row[0].title, *_verdicts(row)] for row in rows]
    head = ["claim", *(text for part in PARTS.values() for text in (part.title, "the two numbers"))]
    explained_below = "\n\n".join(["## The claims, one by one", *map(_explanation, rows)])
    opening = f"{OPENING} {_not_ahead(found)}".rstrip()
    long = protocol(stores["claims-resnet20"])
    parts = [f"# {TITLE}", opening, table(head, lines), long, READING, explained_below]
    written = {"claims": _join([*parts, f"## Rules\n\n{RULE}"])}
    seen: list[Claim] = []
    for name, part in PARTS.items():
        details = _details(part, stores[name], [claim for claim in found[name] if claim not in seen])
        if part.scale == "cpu":
            details.insert(2, papers_network(sorted(RESULTS.glob(PAPERS_NETWORK))))
        written[name] = _join(details)
        seen += found[name]
    return written


def _details(part: Part, store: ResultStore, mine: Sequence[Claim]) -> list[str]:
    """Return the parts of a page about one data set."""
    scale = find_scale(part.scale)
    tables = (_table(name, part, store) for name in TABLES)
    named = MethodComparison(EVERY_METHOD, tuple(scale.places([], LEVELS))).named(scale)
    notes = (periods(scale, named), mask_updates(store, named), machines(store, named))
    said = "\n\n".join([explained(scale), *filter(None, notes)])
    return [f"# Claims on {part.title}", said, *map(_evidence, mine), _rates(scale.name), *tables]


def _join(parts: Sequence[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


@dataclass(frozen=True)
class Part:
    """A network and data set on which the claims are checked, its scale, and where its records are."""

    title: str
    scale: str
    folder: str

    def store(self) -> ResultStore:
        """Return its records only: the same recipe may mean other images elsewhere."""
        return ResultStore.read([ROOT / self.folder], beside=[RESULTS])


PARTS = {
    "claims-resnet20": Part("ResNet-20, CIFAR-10", "cpu", "results"),
    "claims-resnet8": Part(f"ResNet-8, {JPEG}", "jpeg", "results/jpeg"),
    "claims-digits": Part("digits", "digits", "results/digits"),
}
OPENING = "On this page you can check, claim by claim, whether our runs reproduce the DPF paper."
READING = f"""
The two numbers are from the comparison that is worst for DPF: the accuracy of DPF, then the other accuracy. If a
claim is about other quantities, they are shown instead. *Yes* means that all comparisons agree, *partly* that some
do, *no* that none does, *undecided* that the runs are not comparable or too few (one seed is too few), *open* that
they were not run.

These are trainings on two CPU cores: ResNet-20 on CIFAR-10 for 12 epochs, ResNet-8 on {JPEG} for 8 epochs, and a
network of three convolutions on the digits that come with the package. They are far shorter than the paper's, so a
claim that is not reproduced here is not refuted. The trainings of ResNet-8 are older: they used a JPEG copy of CIFAR-10
and update periods that were not scaled to so short a training, and stay until new ones replace them.

Nothing on this page is typed by hand: `python -m benchmarks.claims` makes it from `results/`, and
[Reproduce the paper](reproduce.md) says how to run more. The evidence, seed by seed: [ResNet-20](claims-resnet20.md),
[ResNet-8](claims-resnet8.md), [digits](claims-digits.md). All methods beside each other: [Results](results.md).
"""


def _not_ahead(found: Mapping[str, Sequence[Claim]]) -> str:
    """Return a sentence for each data set on the methods that DPF is not ahead of, by the claims that compare them."""
    said = []
    for name, part in PARTS.items():
        others: dict[str, list[str]] = {}
        for pair in (pair for claim in found[name] for pair in claim.not_ahead):
            ours, _, level = pair.name.partition(", ")
            where = f"at {level}" + (" after fine-tuning" if ours == "DPF + FT" else "")
            others.setdefault(where, []).append(pair.other.replace(", ", " with "))
        told = [f"{where}: {', '.join(dict.fromkeys(names))}" for where, names in others.items()]
        said += [f"On {part.title}, DPF is not ahead of these methods: {'; '.join(told)}."] if told else []
    return " ".join(said)


def protocol(store: ResultStore) -> str:
    """Return the trainings that follow the paper's protocol beside its numbers; empty if there are none."""
    dense, dpf = PROTOCOL
    lines = []
    for told, column, level in (("", dense, 0.9), *((f", {percent(level)} pruned", dpf, level) for level in LEVELS)):
        cell = column.cell(find_scale("paper"), ("resnet20", level))
        if (top1 := accuracy(store, cell)) != NOT_RUN:
            used = sorted({cpu for outcome in store.outcomes(cell) for cpu in cpus(outcome.run)})
            lines.append([f"{column.title}{told}", printed("resnet20", column, level), top1, ", ".join(used)])
    head = ["ResNet-20, CIFAR-10", "paper", "ours (seeds)", "CPU"]
    return f"Our trainings with the paper's own protocol:\n\n{table(head, lines)}" if lines else ""


def _verdicts(row: Sequence[Claim]) -> list[str]:
    """Return verdict and numbers at every scale; those that do not depend on the scale are shown once."""
    same = len(set(row)) == 1 and row[0].verdict != OPEN
    shown = [row[0]] if same else row
    cells = [text for claim in shown for text in (claim.word, claim.numbers or "–")]
    return cells + ["–"] * (2 * len(row) - len(cells))


def _explanation(row: Sequence[Claim]) -> str:
    """Return the evidence for the verdicts of a claim."""
    said = {part.title: claim for part, claim in zip(PARTS.values(), row, strict=True)}
    if len(set(row)) == 1:
        return f"**{row[0].title}**\n: {row[0].verdict}."
    told = "; ".join(f"{title}: {claim.verdict}" for title, claim in said.items())
    return f"**{row[0].title}**\n: {told}."


def _evidence(claim: Claim) -> str:
    """Return a claim with its evidence, but without a table in which nothing was run."""
    return "" if claim.verdict == OPEN else f"## {claim.title}\n\n**{claim.verdict}**\n\n{claim.evidence}"


def _table(name: str, part: Part, store: ResultStore) -> str:
    """Return an item's table, or an empty string if less than half of it was run."""
    view = find_experiment(name).view(find_scale(part.scale), store)
    if 2 * sum(row.get("mean") is not None for row in view.rows) < len(view.rows):
        return ""
    command = f"python -m reproduce {name} --scale {part.scale} --show --records {part.folder}"
    return f"## {view.title}\n\n`{command}`\n\n{view.text}"


def papers_network(files: Iterable[Path]) -> str:
    """Return all trainings of the paper's own network beside the paper's numbers."""
    lines = []
    for path in files:  # one length of training in each, so that no label needs it
        runs = find_runs([path])
        for task in make_tasks(group(runs)[0], runs):
            ended = [entry.group for entry in task.entries if entry.group.ended]
            for row, found in zip(leaderboard(task, in_the_paper), ended, strict=True):
                used = {cpu for outcome in found.outcomes for cpu in cpus(outcome.run)}
                paper = str(row.published or "–")
                told = [row.label, row.epochs, row.top1, str(row.seeds), paper]
                lines.append([*told, _updates(found), ", ".join(sorted(used))])
    head = ["ResNet-20", "epochs", "top-1", "seeds", "the paper, 300 epochs", "mask updates", "CPU"]
    said = (
        "The paper fine-tunes for 60 more epochs. The same training may end differently on another CPU, which rounds "
        "differently."
    )
    return f"## All trainings\n\n{table(head, lines)}\n\n{said}"


def _updates(found: Group) -> str:
    updates = found.summary("mask_updates")
    return "–" if updates is None else f"{updates.mean:,.0f}"


def _rates(scale: str) -> str:
    """Return the learning rates that were tried, and those that were chosen; the cpu scale has those of `small`."""
    path = RESULTS / "tuning" / "choices.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    tuned = find_scale("small" if scale == "cpu" else scale)
    rows = [row for row in rows if row["scale"] == tuned.name]
    if not rows:
        return ""
    lines = [
        [row["method"], f"{row['lr']:g}", _tried(row), "yes" if row["at_edge"] else "no", _finetuning(row)]
        for row in rows
    ]
    head = ["method", "chosen", "held-out top-1 by learning rate", "at an edge", "fine-tuning"]
    network = f" of {tuned.about}" if scale == "cpu" else ""
    level = f"{percent(tuned.tuned_at)} (SFP: 40 % of the filters)"
    note = f"Chosen on {rows[0]['source']}{network}, with a seed of its own, at {level}."
    return f"## Learning rates\n\n{table(head, lines)}\n\n{note} A rate at an edge of the grid may not be the best."


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
    for name, text in pages().items():
        (DOCS / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"docs/{name}.md written")


if __name__ == "__main__":
    main()
