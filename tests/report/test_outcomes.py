"""What is counted in a report, and how numbers are written."""

import itertools
import json
import math
import shutil
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.collect import add, record
from regrow.report.tables import leaderboard, make_tasks, plus_minus
from regrow.runs.find import Run, find_runs, read_run
from regrow.runs.folder import RunFolderError
from regrow.runs.outcomes import Summary, group, outcomes_of
from regrow.runs.recipe import Recipe, RecipeError
from regrow.text import quantity
from regrow.train.loop import DivergedError
from regrow.train.run import run
from tests.report.conftest import QUICK

ACCURACIES = st.floats(0, 100)


def finished(recipe: Recipe, **result: float) -> Run:
    """A run of which nothing but the result is known."""
    return Run(Path(recipe.name()), recipe, {"top1": 50.0, "sparsity": recipe.sparsity, **result})


def diverged(recipe: Recipe, phase: str = "train") -> Run:
    """A run whose loss became NaN."""
    return Run(Path(recipe.name()), recipe, None, {"diverged": "the loss is nan", "phase": phase, "recipe": {}})


def entries(runs: list[Run]):
    (task,) = make_tasks(group(runs)[0], runs)
    return {entry.label: entry for entry in task.entries}


@given(st.lists(ACCURACIES, min_size=2, max_size=6))
def test_a_summary_is_the_mean_and_the_sample_standard_deviation(values):
    summary = Summary.of(values)
    assert summary.n == len(values)
    assert min(values) - 1e-9 <= summary.mean <= max(values) + 1e-9
    squares = sum((value - summary.mean) ** 2 for value in values)
    assert math.isclose(summary.std, math.sqrt(squares / (len(values) - 1)), rel_tol=1e-6, abs_tol=1e-6)
    assert summary.low <= summary.mean <= summary.high


def test_one_seed_has_no_standard_deviation():
    assert plus_minus(Summary.of([71.0])) == "71.00"
    assert plus_minus(Summary.of([71.0, 73.0])) == "72.00 ± 1.41"
    assert plus_minus(None) == "–"


def test_runs_that_diverged_are_a_line_of_the_table_with_the_papers_star():
    runs = [diverged(QUICK.changed(seed=seed)) for seed in (0, 1)]
    (task,) = make_tasks(group(runs)[0], runs)
    assert not task.unfinished
    (row,) = leaderboard(task, None)
    assert (row.top1, row.seeds, row.sparsity) == ("★ diverged", 2, "–")


def test_a_seed_that_diverged_is_counted_beside_those_that_converged_and_in_no_mean():
    runs = [finished(QUICK, top1=60.0), finished(QUICK.changed(seed=1), top1=62.0), diverged(QUICK.changed(seed=2))]
    (task,) = make_tasks(group(runs)[0], runs)
    (row,) = leaderboard(task, None)
    assert (row.top1, row.seeds) == ("61.00 ± 1.41 (★ 1 more diverged)", 2)


def test_a_run_that_diverged_in_fine_tuning_did_not_diverge_in_training():
    recipe = QUICK.changed(finetune_epochs=1)
    first, second = diverged(recipe), diverged(recipe, "finetune")
    assert [(outcome.finetuned, outcome.diverged) for outcome in outcomes_of(first)] == [(False, True), (True, True)]
    assert [(outcome.finetuned, outcome.diverged) for outcome in outcomes_of(second)] == [(True, True)]


def test_a_real_run_that_diverges_is_found_in_its_folder_and_in_a_file_of_results(tmp_path):
    with pytest.raises(DivergedError):
        run(QUICK.changed(lr=1e30), tmp_path / "run")
    add([record(tmp_path / "run")], tmp_path / "results.jsonl")
    for found in find_runs([tmp_path / "run", tmp_path / "results.jsonl"]):
        assert found.result is None
        assert "at step" in found.diverged["diverged"]
        assert found.environment["system"]
    (task,) = make_tasks(group([found])[0], [found])
    assert [row.top1 for row in leaderboard(task, None)] == ["★ diverged"]


@given(accuracies=st.lists(ACCURACIES, min_size=1, max_size=4), order=st.randoms())
def test_runs_that_differ_only_in_the_seed_are_one_group_in_any_order(accuracies, order):
    runs = [finished(QUICK.changed(seed=seed), top1=top1) for seed, top1 in enumerate(accuracies)]
    order.shuffle(runs)
    (only,), repeated = group(runs)
    assert not repeated
    assert only.summary("top1").mean == pytest.approx(statistics.fmean(accuracies))
    assert [outcome.recipe.seed for outcome in only.outcomes] == list(range(len(accuracies)))


@given(st.sampled_from([("lr", 0.7), ("sparsity", 0.5), ("every", 3), ("epochs", 9), ("method", "rigl")]))
def test_runs_that_differ_in_anything_else_are_groups_of_their_own(change):
    name, value = change
    groups, _ = group([finished(QUICK), finished(QUICK.changed(**{name: value}))])
    assert len(groups) == 2


def test_trainings_of_other_lengths_are_curves_of_their_own():
    runs = [finished(QUICK.changed(sparsity=0.9, epochs=300)), finished(QUICK.changed(sparsity=0.95))]
    (task,) = make_tasks(group(runs)[0], runs)
    assert [entry.label for entry in task.entries] == ["DPF 90 % · epochs 300", "DPF 95 % · epochs 2"]
    assert len(task.series) == 2


def test_device_and_threads_do_not_separate_groups():
    groups, _ = group([finished(QUICK), finished(QUICK.changed(seed=1, threads=2))])
    assert len(groups) == 1


def test_a_dense_run_is_the_same_whatever_sparsity_its_recipe_names():
    runs = [finished(QUICK.changed(method="dense", sparsity=s, seed=i)) for i, s in enumerate((0.5, 0.9))]
    assert [len(each.outcomes) for each in group(runs)[0]] == [2]


def test_a_repeated_run_is_reported_and_not_counted_as_a_seed():
    first, copy = finished(QUICK, top1=60.0), Run(Path("copy"), QUICK, {"top1": 60.0})
    (only,), repeated = group([first, copy])
    assert only.summary("top1").n == 1
    assert repeated == [(copy, first)]


def test_training_and_fine_tuning_are_two_outcomes(runs):
    by_label = entries([read_run(runs / "dpf50-s0"), read_run(runs / "dpf50-s1")])
    assert list(by_label) == sorted(by_label, key=lambda label: -by_label[label].group.summary("top1").mean)
    records = read_run(runs / "dpf50-s0").records
    trained, tuned = by_label["DPF 50 %"].group, by_label["DPF + FT 50 %"].group
    assert trained.outcomes[0].final["top1"] == records[1]["top1"]
    assert tuned.outcomes[0].final["top1"] == records[2]["top1"]
    assert trained.summary("nonzeros") == tuned.summary("nonzeros")
    assert [epoch for epoch, _ in trained.curve("top1")] == [1, 2]
    assert [epoch for epoch, _ in tuned.curve("top1")] == [2, 3]


def test_training_with_and_without_fine_tuning_after_it_is_one_outcome(runs, tmp_path):
    plain = Run(tmp_path, QUICK.changed(sparsity=0.5), {"top1": 0.0})
    (trained,) = (g for g in group([read_run(runs / "dpf50-s0"), plain])[0] if not g.finetuned)
    assert len(trained.outcomes) == 1


def test_labels_name_what_differs_and_nothing_else():
    assert set(entries([finished(QUICK), finished(QUICK.changed(lr=0.2))])) == {
        "DPF 90 % · lr 0.1",
        "DPF 90 % · lr 0.2",
    }
    tuned = entries([finished(QUICK), finished(QUICK.changed(sparsity=0.8, lr=0.2))])
    assert {entry.series for entry in tuned.values()} == {"DPF"}
    assert tuned["DPF 80 %"].settings == "lr 0.2"


def test_options_that_are_off_are_not_in_labels():
    ways = itertools.product(("auto", "paper"), (False, True))
    runs = [QUICK.changed(every=every, stabilize=stabilize) for every, stabilize in ways]
    assert set(entries(map(finished, runs))) == {
        "DPF 90 %",
        "DPF 90 % · stabilize",
        "DPF 90 % · the paper's period",
        "DPF 90 % · the paper's period · stabilize",
    }


def test_fields_left_to_the_method_are_not_in_labels():
    usual = QUICK.changed(every="paper")
    assert set(entries([finished(usual), finished(usual.changed(scope="layer"))])) == {
        "DPF 90 %",
        "DPF 90 % · scope layer",
    }


def test_filters_and_weights_are_two_series_even_where_no_sparsity_has_both():
    both = entries([finished(QUICK), finished(QUICK.changed(sparsity=0.4, unit="filter"))])
    assert {entry.series for entry in both.values()} == {"DPF", "DPF · unit filter"}


@pytest.mark.parametrize("order", [1, -1])
def test_a_run_without_fine_tuning_is_preferred_for_the_result_of_training(order):
    tuned = finished(QUICK.changed(finetune_epochs=1), top1=90.0, top1_before_finetuning=60.0)
    plain = finished(QUICK, top1=50.0)
    groups, _ = group([tuned, plain][::order])
    assert {each.summary("top1").mean for each in groups} == {90.0, 50.0}


def test_networks_and_data_sets_are_not_compared_with_one_another():
    recipes = [QUICK, QUICK.changed(width=8), QUICK.changed(holdout=100), QUICK.changed(model="resnet8")]
    runs = [finished(recipe) for recipe in recipes]
    tasks = make_tasks(group(runs)[0], runs)
    assert len({task.slug for task in tasks}) == len(tasks) == 4
    assert "small · width 4 · Digits · 100 held-out training images" in {task.title for task in tasks}


def test_unfinished_runs_are_shown_but_not_in_the_means(runs):
    found = find_runs([runs])
    (task,) = make_tasks(group(found)[0], found)
    assert [run.folder.name for run in task.unfinished] == ["unfinished"]
    by_label = {entry.label: entry for entry in task.entries}
    assert by_label["DPF 90 %"].group.summary("top1").n == 2


def test_runs_are_found_at_any_depth_once(runs):
    names = [run.folder.name for run in find_runs([runs, runs / "dense", runs])]
    assert names == sorted(names)
    assert names.count("dense") == 1
    assert len(names) == 7


def test_runs_inside_the_folder_of_a_run_are_found(runs, tmp_path):
    shutil.copytree(runs / "dense", tmp_path / "run")
    for inside in ("a/b", "plots/c"):
        shutil.copytree(runs / "dense", tmp_path / "run" / inside)
    assert [run.folder for run in find_runs([tmp_path])] == [tmp_path / "run", tmp_path / "run" / "a" / "b"]


def test_listing_finished_runs_opens_only_result_json(runs, tmp_path):
    shutil.copytree(runs / "dense", tmp_path / "dense")
    (tmp_path / "dense" / "metrics.jsonl").write_text("damaged\n")
    (run,) = find_runs([tmp_path])
    assert run.result["top1"] > 0
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 1 is damaged"):
        _ = run.records


def test_a_damaged_line_is_an_error_that_names_it(runs, tmp_path):
    shutil.copytree(runs / "dense", tmp_path / "dense")
    path = tmp_path / "dense" / "metrics.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + second[:40] + "\n")
    with pytest.raises(RunFolderError, match=r"dense/metrics\.jsonl, line 2 is damaged"):
        _ = read_run(tmp_path / "dense").records
    path.write_text(first + second[:40])
    assert len(read_run(tmp_path / "dense").records) == 1, "half a line at the end is one that is being written"


@pytest.mark.parametrize("content", ['{"top1": 1', "{}", '{"recipe": {"epocs": 3}, "top1": 1}', "[]"])
def test_an_invalid_result_is_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "recipe.toml").write_text(QUICK.to_toml())
    (tmp_path / "result.json").write_text(content)
    with pytest.raises((RunFolderError, RecipeError), match=r"result\.json"):
        find_runs([tmp_path])


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="there is no run in"):
        find_runs([tmp_path])
    with pytest.raises(RunFolderError, match="does not exist"):
        find_runs([tmp_path / "missing"])
    (tmp_path / "results.jsonl").touch()
    with pytest.raises(RunFolderError, match=r"To read its results, pass .*\*\.jsonl"):
        find_runs([tmp_path])


def test_a_file_of_results_gives_the_outcomes_that_the_runs_gave(runs, tmp_path):
    read = [read_run(runs / name) for name in ("dpf50-s0", "dpf50-s1", "dense")]
    lines = [
        {**run.result, "top1_before_finetuning": run.records[1]["top1"], "environment": run.environment} for run in read
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ours, recorded = entries(read), entries(find_runs([path]))
    assert list(ours) == list(recorded)
    for label in ours:
        for quantity_ in ("top1", "sparsity", "nonzeros", "macs_kept"):
            assert ours[label].group.summary(quantity_) == recorded[label].group.summary(quantity_)
    path.write_text(path.read_text() + '{"top1": 3}\n')
    with pytest.raises(RunFolderError, match=r"results\.jsonl, line 4 is not the result"):
        find_runs([path])
    path.write_text('{"top1":')
    with pytest.raises(RunFolderError, match=r"results\.jsonl, line 1 is damaged"):
        find_runs([path])


def test_a_run_before_its_first_epoch_can_be_reported(tmp_path):
    (tmp_path / "recipe.toml").write_text(QUICK.to_toml())
    runs = find_runs([tmp_path])
    (task,) = make_tasks(group(runs)[0], runs)
    assert not task.entries
    assert task.unfinished == tuple(runs)


def test_the_speed_is_that_of_training_and_compared_on_one_machine_only(runs):
    run = read_run(runs / "dpf50-s0")
    speeds = [json.loads(line)["images_per_second"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert run.images_per_second == statistics.median(speeds[:2])
    assert run.machine.endswith(", 1 thread")


def test_large_numbers_have_three_digits():
    assert [quantity(n) for n in (12, 999, 1000, 40_812_544, 999_900)] == ["12", "999", "1 k", "40.8 M", "1000 k"]
