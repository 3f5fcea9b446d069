"""The paper's claims as a checklist, each with its evidence and a verdict."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from regrow.report.tables import percent
from reproduce import tables
from reproduce.comparisons import HEAD, Pair, against, often, place, rarely, retrainings
from reproduce.experiments import Experiment
from reproduce.figures import fraction_moving, period_sparsity, settling
from reproduce.lottery import compute_of_dpf, compute_of_search, tickets
from reproduce.results import MACHINES, SIZE, Cell, ResultStore, Verdict, difference
from reproduce.scales import Scale
from reproduce.tables import DPF, DPF_TUNED, RATIOS, SPARSITIES, Column, explained
from reproduce.theory.study import read_theorems
from reproduce.views import NOT_RUN, Content, accuracy, table

RULE = f"""
A method is *ahead* of another if it is better with every seed, and there are at least two seeds. If the seeds
disagree, the methods are *level*. A claim about several comparisons is reproduced if all of them agree. Three verdicts
mean that two runs cannot be compared:

* *two machines*: a run marked † was made on another machine than the run that it is compared with, and the difference
  is at most {MACHINES:g} points. This is the largest difference between two machines that we measured for the same
  training (digits, six trainings). A run has no mark if one training of the network gave the same numbers on both
  machines (`python -m benchmarks.again`).
* *other size*: one of the two models has more than {100 * SIZE:g} % more parameters left than the other or, if filters
  are pruned, more MACs.
* *other mask*: a run marked ‡ uses the mask of a repeated training, which differs from that of the run that it is
  compared with.

★ in place of a difference means that the other training diverged, so that ours counts as ahead; −★ means that ours
diverged.
""".strip()
SHOWN, NOT_SHOWN, TOO_FEW, OPEN = "reproduced", "not reproduced at this scale", "one seed only", "not run"
_SFP = (
    "SFP follows the ramp, as in the paper's comparison, and collapses here: a filter that was set "
    "to zero gets a very large gradient through batch norm and grows larger than the filters that were kept, so the "
    "next update removes useful filters. SFP with its authors' constant ratio is listed as well."
)
_DPF = (
    "DPF collapses here: a filter that was set to zero gets a very large gradient through batch norm. `stabilize` "
    "bounds it."
)
_SCOPES = "Both keep the same number of weights; one threshold for all layers keeps more MACs."
_FILTERS = (
    "The fraction of pruned filters does not determine the size of a model: with `stabilize`, other filters are "
    "pruned, and so another fraction of weights and MACs. The effect of `stabilize` at equal size was not measured."
)
_OF_FILTERS = (tables.SFP, tables.SFP_CONSTANT)
_OF_TODAY = (Column("static"), Column("set"), Column("rigl"), Column("granet"), tables.ACDC)
_ORDER: tuple[Verdict, ...] = (
    *("ahead", "level", "behind", "two machines", "other size", "other mask"),
    *("one seed", "not run"),
)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the evidence for it, as Markdown."""

    title: str
    verdict: str
    evidence: str
    numbers: str = ""
    """The two numbers that decide, such as `67.5 and 68.3 (Incremental)`."""
    cells: tuple[Cell, ...] = field(default=(), compare=False)
    """The runs that are trained for it."""
    not_ahead: tuple[Pair, ...] = field(default=(), compare=False)
    """The comparisons with other methods in which DPF is behind or level, also with one seed, other size or machine."""

    @property
    def word(self) -> str:
        """The verdict in one word."""
        words = {SHOWN: "yes", NOT_SHOWN: "no", OPEN: "open", TOO_FEW: "undecided"}
        return words.get(self.verdict) or ("partly" if self.verdict.startswith("in part") else "undecided")


def _compared(title: str, compared: list[Pair], store: ResultStore, note: str = "", *, rivals: bool = False) -> Claim:
    """Return a claim that holds if the first of every pair is ahead; `rivals`: the second ones are other methods."""
    found = [(pair, difference(store, pair.ours, pair.theirs)) for pair in compared]
    verdicts = [gap.verdict for _, gap in found]
    not_ahead = tuple(
        pair
        for pair, gap in found
        if rivals and (gap.verdict == "level" or (gap.verdict not in ("not run", "other mask") and gap.mean <= 0))
    )
    evidence = table(HEAD, [pair.line(store) for pair in compared])
    cells = tuple(cell for pair in compared for cell in (pair.ours, pair.theirs))
    return Claim(
        title, _together(verdicts), f"{evidence}\n\n{note}".strip(), _hardest(compared, store), cells, not_ahead
    )


def _hardest(compared: list[Pair], store: ResultStore) -> str:
    """Return the two accuracies of the comparison in which ours is least ahead."""
    found = [(pair, _mean(pair.ours, store), _mean(pair.theirs, store)) for pair in compared]
    known = [(pair, ours, theirs) for pair, ours, theirs in found if ours is not None and theirs is not None]
    if not known:
        return ""
    pair, *means = min(known, key=lambda each: each[1] - each[2] if each[1] != each[2] else 0.0)  # both may be infinite
    ours, theirs = ("★" if math.isinf(mean) else f"{mean:.1f}" for mean in means)
    return f"{ours} and {theirs} ({pair.other})"


def _mean(cell: Cell, store: ResultStore) -> float | None:
    """Return the mean accuracy of a cell, minus infinity if all its runs diverged; None if it was not run."""
    if (summary := store.summary(cell)) is not None:
        return summary.mean
    return -math.inf if store.diverged(cell) else None


def _together(verdicts: list[Verdict]) -> str:
    """Return one verdict for all comparisons: reproduced only if every one is ahead."""
    shown = verdicts.count("ahead")
    if shown == len(verdicts):
        return SHOWN
    if set(verdicts) <= {"one seed", "not run"}:
        return TOO_FEW if "one seed" in verdicts else OPEN
    against = verdicts.count("behind") + verdicts.count("level")
    if shown == 0 and against:
        return NOT_SHOWN
    counts = [f"{verdict} in {verdicts.count(verdict)}" for verdict in _ORDER if verdict in verdicts]
    return f"{'in part' if shown else 'undecided'}: of {len(verdicts)} comparisons, {', '.join(counts)}"


def _collapses(column: Column, scale: Scale, store: ResultStore, ratio: float) -> bool:
    """Return whether a method has less than half of the accuracy of the dense network."""
    at = place(scale, ratio)
    pruned, dense = (store.summary(each.cell(scale, at)) for each in (column, tables.DENSE))
    return pruned is not None and dense is not None and pruned.mean < dense.mean / 2


def _early(scale: Scale, store: ResultStore) -> Claim:
    lines, latest, seeds = [], [], []
    cells = {sparsity: DPF.cell(scale, place(scale, sparsity)) for sparsity in SPARSITIES}
    for sparsity, cell in cells.items():
        found = settling(store, cell)
        curve: list[float] = found["still_changing"]
        fractions = [fraction_moving(curve, part) for part in (0.25, 0.5, 0.75)]
        lines.append([percent(sparsity), *fractions, str(found["seeds"])])
        if curve:
            latest.append(curve[round(0.75 * (len(curve) - 1))])
            seeds.append(found["seeds"])
    evidence = table(["pruned", "after 25 % of training", "after 50 %", "after 75 %", "seeds"], lines)
    note = "Mask elements that change later. The paper: 5 % after 78 % of training, WideResNet-28-2 at 95 %."
    verdict = _of_seeds(seeds, holds=max(latest, default=1.0) <= 0.05)
    numbers = f"{100 * max(latest):.1f} % and 5 % (paper) change after 75 % of training" if latest else ""
    return Claim("The mask settles early", verdict, f"{evidence}\n\n{note}", numbers, tuple(cells.values()))


def _of_seeds(seeds: list[int], *, holds: bool) -> str:
    """Return the verdict on numbers that have so many seeds each; it needs one with at least two."""
    if not seeds:
        return OPEN
    return TOO_FEW if max(seeds) < 2 else SHOWN if holds else NOT_SHOWN


def _period(scale: Scale, store: ResultStore) -> Claim:
    title = "A mask update every 16 steps is close to the best period"
    heat = period_sparsity(scale)
    found = {key: store.summary(cell) for key, cell in heat.cells.items()}
    known = {key: summary for key, summary in found.items() if summary is not None}
    gaps, accuracies, seeds = [], [], []
    for row in heat.down:
        mine = {column: summary for (each, column), summary in known.items() if each == row}
        if "16" in mine and len(mine) > 2:
            best = max(mine.values(), key=lambda summary: summary.mean)
            gaps.append(best.mean - mine["16"].mean)
            accuracies.append(f"{mine['16'].mean:.1f} and {best.mean:.1f} (best period)")
            seeds.append(min(best.n, mine["16"].n))
    verdict = _of_seeds(seeds, holds=max(gaps, default=1.0) <= 0.5)
    note = f"The best period is {max(gaps):.2f} points above p = 16." if gaps else "At least three periods are needed."
    numbers = accuracies[gaps.index(max(gaps))] if gaps else ""
    return Claim(title, verdict, f"{heat.text(store)}\n\n{note}", numbers, tuple(heat.cells.values()))


def _overhead(store: ResultStore) -> Claim:
    title = "The overhead is trivial"
    path = store.file("core.json")
    if path is None:
        return Claim(title, OPEN, "`python -m benchmarks.core` measures it.")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    steps = {row["measured"]: row for row in rows if "training step" in row["measured"]}
    lines = [[name, f"{row['ms']:.1f} ms", f"{row['ratio']:.3f}"] for name, row in steps.items()]
    ratios = [row["ratio"] for name, row in steps.items() if name.endswith("DPF")]
    verdict = OPEN if not ratios else SHOWN if max(ratios) <= 1.02 else NOT_SHOWN
    numbers = f"{max(ratios):.2f} and 1 (time of a training step, with and without)" if ratios else ""
    return Claim(title, verdict, table(["side by side", "time", "of plain training"], lines), numbers)


def _bounds(store: ResultStore) -> Claim:
    records = read_theorems(store)
    held = sum(record["measured"] <= record["bound"] for record in records)
    verdict = OPEN if not records else SHOWN if held == len(records) else NOT_SHOWN
    said = f"{held} of {len(records)} measurements are within their bound; see [the theorems](theory.md)."
    said = said if records else "`python -m reproduce theorems` checks it."
    numbers = f"{held} of {len(records)} measurements" if records else ""
    return Claim("The bounds of both theorems hold", verdict, said, numbers)


def _tickets(scale: Scale, store: ResultStore) -> Claim:
    title = "DPF needs a fraction of the compute of a lottery ticket"
    searches = tickets(scale)
    spent = compute_of_search(searches[0], store, len(searches[0].levels) - 1)
    network, sparsity = searches[0].recipe.model, searches[0].sparsity
    dpf = scale.cell(network, "dpf", sparsity)
    mine = compute_of_dpf(store, dpf)
    ticket = Cell(tuple(search.level(sparsity) for search in searches))
    lines = [
        ["DPF", accuracy(store, dpf), NOT_RUN if mine is None else f"{mine:.2f}"],
        ["lottery ticket", accuracy(store, ticket), NOT_RUN if spent is None else f"{spent:.2f}"],
    ]
    if mine is None or spent is None:
        verdict = OPEN
    elif mine >= spent / 2:
        verdict = NOT_SHOWN
    else:
        gap = difference(store, dpf, ticket)
        behind = f"{-gap.mean:.1f} points behind" if math.isfinite(gap.mean) else f"DPF against the ticket: {gap}"
        verdict = OPEN if not gap.by_seed else SHOWN if gap.mean >= 0 else f"in part: less compute, but {behind}"
    numbers = "" if mine is None or spent is None else f"{mine:.2f} and {spent:.2f} dense trainings"
    evidence = table([percent(sparsity), "top-1", "compute, in dense trainings"], lines)
    return Claim(title, verdict, evidence, numbers)


def claims(scale: Scale, store: ResultStore) -> list[Claim]:
    """Return the checklist."""
    return [*_of_the_paper(scale, store), *_beyond_the_paper(scale, store)]


def _of_the_paper(scale: Scale, store: ResultStore) -> list[Claim]:
    others = (tables.ONESHOT, *map(Column, ("snip", "incremental", "sparse-momentum", "dsr")))
    simple = (tables.INCREMENTAL, tables.INCREMENTAL_TUNED, tables.ONESHOT)
    layers = Column("dpf", fields=(("scope", "layer"),), name="layer by layer")
    ahead = against(scale, "DPF, {}", DPF, others, [0.9])
    helped = against(scale, "DPF + FT, {}", DPF_TUNED, [DPF], [0.95])
    tuned = against(scale, "DPF + FT, {}", DPF_TUNED, simple, [0.95])
    scopes = against(scale, "global, {}", DPF, [layers], [0.9, 0.95])
    filters = against(scale, "DPF, {} of the filters", tables.DPF_FILTERS, _OF_FILTERS, RATIOS)
    collapses = " ".join(
        said
        for said, column in ((_SFP, tables.SFP), (_DPF, tables.DPF_FILTERS))
        if any(_collapses(column, scale, store, ratio) for ratio in RATIOS)
    )
    return [
        _compared("DPF without fine-tuning is ahead at 90 %", ahead, store, rivals=True),
        _compared("Fine-tuning helps DPF at 95 %", helped, store),
        _compared("Fine-tuned DPF is ahead at 95 %", tuned, store, rivals=True),
        _early(scale, store),
        _compared("DPF's mask is not a lottery ticket", retrainings(scale, store), store),
        _tickets(scale, store),
        _period(scale, store),
        _compared("One threshold for all layers is ahead at high sparsity", scopes, store, _SCOPES),
        _compared("DPF is ahead of SFP when filters are pruned", filters, store, collapses, rivals=True),
        _overhead(store),
        _bounds(store),
    ]


def _beyond_the_paper(scale: Scale, store: ResultStore) -> list[Claim]:
    every_step, usual = Column("dpf", fields=often(scale)), Column("dpf", fields=rarely(scale), name="DPF, every=16")
    settled = Column("dpf", fields=(*often(scale), ("settle", 0.1)), name="DPF, settle=0.1")
    all_three = Column("dpf", fields=(*often(scale), ("settle", 0.1), ("stabilize", True)))
    soft = Column("dpf", fields=(*settled.fields, ("options", ("threshold=soft",))))
    simple = (DPF, DPF_TUNED, tables.INCREMENTAL, tables.INCREMENTAL_TUNED, tables.ACDC)
    remedies = {"settle=0.1": tables.SETTLED, "stabilize=true": tables.STABLE}
    compared = {
        "DPF with a mask at every step is ahead": against(
            scale, "DPF, every step, {}", every_step, (usual, tables.INCREMENTAL), (0.9, 0.95)
        ),
        "DPF with a mask at every step and `settle` is ahead": against(
            scale, "DPF, settle=0.1, {}", settled, simple, (0.9, 0.95)
        ),
        "the soft threshold with a mask at every step and `settle` is ahead": against(
            scale, "DPF, soft, settle=0.1, {}", soft, (settled, tables.INCREMENTAL, tables.ACDC), (0.9, 0.95)
        ),
        "at 98 % DPF with all three options is ahead": against(
            scale, "DPF, settle=0.1, stabilize, {}", all_three, (DPF, tables.STABLE, tables.INCREMENTAL), [0.98]
        ),
        "`settle` or `stabilize` is ahead": [
            pair
            for sparsity in (0.9, 0.95, 0.98)
            for option, remedy in remedies.items()
            for pair in against(scale, f"DPF, {option}, {{}}", remedy, (DPF, tables.INCREMENTAL), [sparsity])
        ],
    }
    grown = against(scale, "DPF, {}", DPF, _OF_TODAY, (0.9, 0.95))
    filters = against(
        scale,
        "DPF, stabilize, {} of the filters",
        tables.STABLE_FILTERS,
        (tables.DPF_FILTERS, *_OF_FILTERS),
        RATIOS,
    )
    return [
        _compared("Beyond the paper: DPF is ahead of Static, SET, RigL, GraNet and ACDC", grown, store, rivals=True),
        *(_compared(f"Beyond the paper: {title}", pairs, store) for title, pairs in compared.items()),
        _compared("Beyond the paper: DPF with `stabilize` is ahead when filters are pruned", filters, store, _FILTERS),
    ]


def _cells(scale: Scale, store: ResultStore) -> list[Cell]:
    return [cell for claim in claims(scale, store) for cell in claim.cells]


def _content(scale: Scale, store: ResultStore) -> Content:
    found = claims(scale, store)
    summary = table(["claim", "verdict"], [[claim.title, claim.verdict] for claim in found])
    parts = [f"## {claim.title}\n\n**{claim.verdict}**\n\n{claim.evidence}" for claim in found]
    rows: list[dict[str, Any]] = [{"claim": claim.title, "verdict": claim.verdict} for claim in found]
    return "\n\n".join([summary, RULE, explained(scale), *parts]), rows, ()


TITLE = "The paper's claims, and what was measured"
EXPERIMENTS = (Experiment("claims", TITLE, _content, _cells, cost="shares its runs with the other items"),)
