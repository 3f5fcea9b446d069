"""The page of claims says what the results say, and a verdict needs seeds that agree."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import claims as page
from benchmarks import headline, tuning
from regrow.runs.find import Run
from regrow.runs.recipe import Recipe, load_recipe
from reproduce.__main__ import call
from reproduce.claims import claims
from reproduce.experiments import find_experiment
from reproduce.results import MACHINES, Cell, Difference, Gap, ResultStore, difference
from reproduce.scales import find_scale, known_rates
from reproduce.tables import machines


def test_the_pages_are_up_to_date_with_the_results():
    written = {name: (page.DOCS / f"{name}.md").read_text(encoding="utf-8") for name in page.pages()}
    assert written == page.pages(), "run: python -m benchmarks.claims"


def test_the_page_opens_with_one_table_of_one_word_verdicts_and_their_numbers():
    heading, opening, table = page.pages()["claims"].split("\n\n")[:3]
    assert heading.startswith("# ")
    assert "\n" not in opening
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    found = [claim.title for claim in claims(find_scale("jpeg"), page.PARTS["claims-resnet8"].store())]
    assert [row[0] for row in rows] == found
    for verdicts, numbers in ((1, 2), (3, 4), (5, 6)):
        assert {row[verdicts] for row in rows} <= {"yes", "partly", "no", "undecided", "open", "–"}
        assert all(any(digit.isdigit() for digit in row[numbers]) for row in rows if row[verdicts] not in ("open", "–"))


def test_a_training_with_the_papers_protocol_is_beside_the_papers_number_on_every_page(tmp_path):
    # As `regrow train cifar-resnet20 --every 16 --channels-last --threads 1` makes it.
    recipe = load_recipe("cifar-resnet20").changed(sparsity=0.9, every=16, channels_last=True, threads=1)
    machines = [{"epoch": 0, "cpu": "one"}, {"epoch": 52, "cpu": "another"}]
    found = {"key": recipe.key(), "recipe": dataclasses.asdict(recipe), "machines": machines, "mask_updates": 7332}
    record = {**found, "name": "long", "top1": 90.12, "sparsity": 0.9, "environment": {"cpu": "another"}}
    path = tmp_path / "cifar10-resnet20.jsonl"
    path.write_text(json.dumps(record) + "\n")
    store = ResultStore.read([page.RESULTS, path])

    row = "| DPF (300 epochs, the paper's protocol) | 90.88 ± 0.07 | 90.12 (1) | 88.01 ± 0.30 | not run | 7,332 |"
    assert row in headline.comparison(store)
    first = headline.numbers(store)[0]
    assert first.value == "90.1 %"
    assert "the paper: 90.88 ± 0.07 %. Dense: 92.48 ± 0.20 % in the paper" in first.said
    row = "| DPF (300 epochs, the paper's protocol), 90 % pruned | 90.88 ± 0.07 | 90.12 (1) | another, one |"
    assert row in page.protocol(store)
    row = "| DPF 90 % | 300 | 90.12 | 1 | 90.88 ± 0.07 | 7,332 | another, one |"
    assert row in page.papers_network([page.RESULTS / "cifar10-resnet20-cpu.jsonl", path])


def test_without_records_the_first_page_has_no_accuracies_and_no_picture():
    nothing = ResultStore()

    assert headline.levels(nothing) == []
    assert headline.comparison(nothing) == ""
    assert "accuracy" not in headline.cells(nothing)


def test_one_seed_does_not_show_that_the_mask_settles_early():
    recipe = find_scale("digits").recipe("small", "dpf", 0.9)
    settled = json.loads((page.RESULTS / "digits" / "small.jsonl").read_text().splitlines()[0])
    settled["still_changing"] = [0.0] * 16
    runs = [Run(Path(str(seed)), recipe.changed(seed=seed), settled) for seed in (0, 1)]
    verdicts = [
        next(claim for claim in claims(find_scale("digits"), ResultStore(some)) if "settles" in claim.title).verdict
        for some in (runs[:1], runs)
    ]

    assert verdicts == ["one seed only", "reproduced"]


def test_the_first_paragraph_says_where_dpf_is_not_ahead():
    opening = page.pages()["claims"].split("\n\n")[1]
    digits = claims(find_scale("digits"), page.PARTS["claims-digits"].store())
    behind = {pair.other.replace(", ", " with ") for claim in digits for pair in claim.not_ahead}

    assert behind
    [said] = re.findall(r"On digits, DPF is not ahead of these methods: (.*)\.", opening)
    named = {name for part in said.split("; ") for name in part.partition(": ")[2].split(", ")}
    assert named == behind


def test_the_pages_name_the_data_and_show_no_folder_of_a_machine():
    pages = page.pages()

    assert "ResNet-8, CIFAR-10 (JPEG q75)" in pages["claims"]
    assert pages["claims-resnet8"].startswith("# Claims on ResNet-8, CIFAR-10 (JPEG q75)")
    assert "JPEG" not in pages["claims-resnet20"]
    assert "/work" not in "".join(pages.values())


def test_the_commands_on_the_pages_print_the_tables_below_them(capsys, tmp_path):
    sections = [part for text in page.pages().values() for part in text.split("\n## ") if " --show " in part]
    assert sections

    for section in sections:
        (command,) = re.findall(r"`python -m reproduce (.+ --show .+)`", section)
        assert call([*command.split(), "--out", str(tmp_path)]) == 0
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        assert rows == [line for line in section.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(
    ("by_seed", "verdict"),
    [
        ((), "not run"),
        ((3.0,), "one seed"),
        ((0.1, 0.2), "ahead"),
        ((-0.1, -0.2, -0.3), "behind"),
        ((0.5, -0.1, 0.9), "level"),
        ((0.5, 0.0), "level"),
    ],
)
def test_a_method_is_ahead_only_if_it_is_better_with_every_one_of_several_seeds(by_seed, verdict):
    assert Difference(tuple(map(Gap, by_seed))).verdict == verdict


def test_a_gap_between_two_machines_counts_only_if_it_is_larger_than_their_difference():
    near, far = Gap(MACHINES, machines=True), Gap(MACHINES + 0.1, machines=True)

    assert Difference((far, far)).verdict == "ahead"
    assert Difference((far, near)).verdict == "two machines"
    assert Difference((Gap(0.1), far)).verdict == "ahead"
    assert Difference((near, Gap(-0.1))).verdict == "level"
    assert str(Difference((Gap(0.5), near))) == "+0.85 (+0.50, +1.20†)"


def run_on(cpu: str, seed: int, top1: float, **fields: Any) -> Run:
    recipe = Recipe(model="resnet20", threads=1, **fields).changed(seed=seed)
    return Run(Path(cpu), recipe, {"top1": top1, "nonzeros": 10, "environment": {"cpu": cpu}})


@pytest.mark.parametrize(
    ("fact", "verdict"),
    [
        ({}, "ahead"),
        ({"same": False}, "two machines"),
        ({"model": "resnet8"}, "two machines"),
        ({"threads": 2}, "two machines"),
        ({"cpus": ["one", "a third"]}, "two machines"),
    ],
)
def test_two_cpus_count_as_one_where_a_training_of_the_network_gave_the_same_numbers_on_both(tmp_path, fact, verdict):
    found = {"cpus": ["one", "another"], "model": "resnet20", "threads": 1, "same": True} | fact
    (tmp_path / "again.jsonl").write_text(json.dumps(found) + "\n")
    runs = [run_on("one", seed, 90.5) for seed in (0, 1)]
    runs += [run_on("another", seed, 90.0, method="set") for seed in (0, 1)]
    ours, theirs = (Cell(tuple(run.recipe for run in two)) for two in (runs[:2], runs[2:]))
    store = ResultStore(runs, [tmp_path])

    assert difference(store, ours, theirs).verdict == verdict
    said = machines(store, {"DPF": [ours], "SET": [theirs]})
    assert said.startswith("Trained on another and one," if verdict == "ahead" else "CPUs differ")


def test_the_difference_between_two_machines_is_that_of_the_results():
    rows = [json.loads(line) for line in (page.RESULTS / "machines" / "digits.jsonl").read_text().splitlines()]
    same: dict[str, dict[str, float]] = {}
    for row in rows:
        training = {name: value for name, value in row["recipe"].items() if not name.startswith("finetune")}
        by_machine = same.setdefault(json.dumps(training), {})
        by_machine[row["environment"]["cpu"]] = row["top1_before_finetuning"]
    apart = [max(found.values()) - min(found.values()) for found in same.values() if len(found) > 1]

    assert len(apart) == 6
    assert max(apart) == pytest.approx(MACHINES)


def star(recipe: Recipe) -> Run:
    return Run(Path("r"), recipe, None, {"diverged": "the loss is nan", "phase": "train"})


def test_a_training_that_diverged_is_behind_and_has_the_papers_star():
    ours, theirs = (
        [Recipe(model="resnet20", method=method, seed=seed, threads=1) for seed in (0, 1)] for method in ("dpf", "set")
    )
    finished = [
        Run(Path("r"), recipe, {"top1": 90.0, "nonzeros": 10, "environment": {"cpu": "one"}}) for recipe in ours
    ]
    cells = Cell(tuple(ours)), Cell(tuple(theirs))

    found = difference(ResultStore([*finished, *map(star, theirs)]), *cells)
    assert (found.verdict, str(found)) == ("ahead", "★, ★")
    found = difference(ResultStore([*finished, *map(star, theirs)]), *reversed(cells))
    assert (found.verdict, str(found)) == ("behind", "−★, −★")
    found = difference(ResultStore([*finished, star(theirs[0])]), *cells)
    assert (found.verdict, str(found)) == ("one seed", "★ (one seed)")
    found = difference(ResultStore(map(star, [*ours, *theirs])), *cells)
    assert (found.verdict, str(found)) == ("level", "both ★, both ★")


def test_the_claims_say_with_a_star_that_dpf_or_another_method_diverged():
    scale = find_scale("digits").changed(seeds=(0, 1))
    cells = {method: scale.cell("small", method, 0.9) for method in ("dpf", "dsr")}

    def ahead(finished: str, diverged: str) -> Any:
        made = [
            Run(Path("r"), each, {"top1": 90.0, "nonzeros": 1, "macs": 2, "macs_kept": 1})
            for each in cells[finished].recipes
        ]
        store = ResultStore([*made, *map(star, cells[diverged].recipes)])
        return next(claim for claim in claims(scale, store) if "without fine-tuning" in claim.title)

    assert (ahead("dpf", "dsr").numbers, ahead("dpf", "dsr").not_ahead) == ("90.0 and ★ (DSR)", ())
    both = ResultStore(star(each) for cell in cells.values() for each in cell.recipes)
    [level] = [claim for claim in claims(scale, both) if "without fine-tuning" in claim.title]
    assert (level.numbers, [pair.other for pair in level.not_ahead]) == ("★ and ★ (DSR)", ["DSR"])
    found = ahead("dsr", "dpf")
    assert (found.numbers, [pair.other for pair in found.not_ahead]) == ("★ and 90.0 (DSR)", ["DSR"])


def test_a_method_that_is_ahead_at_another_size_is_named_as_well():
    digits = claims(find_scale("digits"), page.PARTS["claims-digits"].store())
    [filters] = [claim for claim in digits if claim.title == "DPF is ahead of SFP when filters are pruned"]

    assert filters.verdict.startswith("undecided")
    assert "SFP" in {pair.other for pair in filters.not_ahead}
    assert "at 40 % of the filters: SFP, SFP with constant ratio" in page.pages()["claims"].split("\n\n")[1]


def test_only_methods_that_collapse_are_said_to():
    pages = page.pages()
    assert "SFP follows the ramp" in pages["claims-resnet8"]
    assert "SFP follows the ramp" not in pages["claims-digits"]
    assert "DPF collapses here" in pages["claims-digits"]


def test_models_of_other_sizes_and_other_masks_are_not_called_ahead():
    assert Difference((Gap(30.0, sizes=True), Gap(40.0, sizes=True))).verdict == "other size"
    assert Difference((Gap(30.0, masks=True),)).verdict == "other mask"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "ahead"),
        ({"parameters left": 0.9}, "other size"),
        ({"MACs left": 0.9}, "other size"),
        ({"cpu": "another"}, "two machines"),
    ],
)
def test_the_runs_behind_a_comparison_say_whether_it_is_one(changes, verdict):
    ours = [_filters(seed, "dpf", 71.0, **changes) for seed in (0, 1)]
    theirs = [_filters(seed, "sfp", 70.0) for seed in (0, 1)]
    cells = [Cell(tuple(run.recipe for run in runs)) for runs in (ours, theirs)]

    assert difference(ResultStore([*ours, *theirs]), *cells).verdict == verdict


def test_weights_are_compared_at_equal_parameters_whatever_the_macs():
    ours = [_pruned(seed, "dpf", 71.0, **{"MACs left": 0.9}) for seed in (0, 1)]
    theirs = [_pruned(seed, "snip", 70.0) for seed in (0, 1)]
    cells = [Cell(tuple(run.recipe for run in runs)) for runs in (ours, theirs)]

    assert difference(ResultStore([*ours, *theirs]), *cells).verdict == "ahead"


def _filters(seed: int, method: str, top1: float, **changes: Any) -> Run:
    return _pruned(seed, method, top1, unit="filter" if method == "dpf" else None, **changes)


def _pruned(seed: int, method: str, top1: float, unit: str | None = None, **changes: Any) -> Run:
    """A run of which nothing but the result is known; half of the network is left, unless `changes` say otherwise."""
    left = {"parameters left": 0.5, "MACs left": 0.5, "cpu": "one", **changes}
    result = {
        **{"top1": top1, "parameters": 1000, "nonzeros": int(1000 * left["parameters left"])},
        **{"macs": 1000, "macs_kept": int(1000 * left["MACs left"]), "environment": {"cpu": left["cpu"]}},
    }
    recipe = Recipe(method=method, sparsity=0.5, unit=unit, seed=seed)
    return Run(Path(recipe.name()), recipe, result)


def test_filters_are_compared_with_the_sizes_beside_the_accuracies():
    found = {claim.title: claim for claim in claims(find_scale("jpeg"), page.PARTS["claims-resnet8"].store())}
    filters = found["Beyond the paper: DPF with `stabilize` is ahead when filters are pruned"]

    assert "97.4 %, 98.2 %" in filters.evidence
    assert filters.verdict == "undecided: of 6 comparisons, other size in 6"


def test_a_mask_that_another_run_found_is_not_compared_with_this_one():
    store, scale = page.PARTS["claims-resnet8"].store(), find_scale("jpeg")
    (claim,) = (each for each in claims(scale, store) if each.title == "DPF's mask is not a lottery ticket")

    assert claim.evidence.count("other mask") == 2
    assert "71.59 (1) ‡" in find_experiment("lottery").view(scale, store).text


def test_without_results_no_claim_is_called_reproduced():
    assert {claim.verdict for claim in claims(find_scale("jpeg"), ResultStore())} == {"not run"}


@pytest.mark.skipif(not tuning.CHOICES.exists(), reason="nothing was tuned")
def test_learning_rates_are_those_that_the_tuning_runs_choose():
    chosen = tuning.choices()

    assert json.loads(tuning.CHOICES.read_text()) == json.loads(json.dumps(tuning.choice_rows(chosen)))
    assert tuning.rate_lines(chosen) == tuning.RATES.read_text()
    for scale, choice in chosen:
        assert known_rates(scale)[choice.network, choice.method].lr == choice.rate.lr
        assert choice.tried[choice.rate.lr] == max(top1 for top1 in choice.tried.values() if top1 is not None)
