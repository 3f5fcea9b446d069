"""Items run to their end at scale smoke: real trainings, real folders; finished ones are not repeated."""

import json
import time

import pytest
import torch

from benchmarks.collect import add, record
from regrow.methods.lottery import LotteryTicket
from regrow.runs.recipe import Recipe
from regrow.train.run import run
from reproduce.__main__ import call
from reproduce.experiments import all_experiments, find_experiment, show
from reproduce.lottery import tickets
from reproduce.results import ResultStore, weights_name
from reproduce.scales import find_scale

# Networks this small lose whole layers at high sparsity, which is said and changes nothing here.
pytestmark = pytest.mark.filterwarnings("ignore:all of:UserWarning")

PERIODS = "A mask update every 16 steps is close to the best period"

# What stands for the others in CI: a table, masks that are trained again, and a search for a ticket.
QUICK = ("table6", "lottery", "period-sparsity", "picture")


def finished(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Items share runs, so tests share a folder."""
    folder = tmp_path_factory.mktemp("reproduce")
    for name in QUICK:
        assert call([name, "--scale", "smoke", "--no-tune", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("name", QUICK)
def test_an_experiment_writes_its_page_and_numbers_without_gaps(name, out):
    scale, store = find_scale("smoke"), ResultStore.read([out / "smoke"])
    page = (out / "smoke" / f"{name}.md").read_text()

    assert find_experiment(name).title in page
    assert "not run" not in page
    assert json.loads((out / "smoke" / f"{name}.json").read_text())
    assert store.missing(find_experiment(name).cells(scale, store)) == []


def test_a_second_time_nothing_is_trained(out):
    before = finished(out)

    assert call(["lottery", "--scale", "smoke", "--no-tune", "--out", str(out)]) == 0
    assert finished(out) == before


def test_only_missing_runs_are_trained(out):
    [run] = (out / "smoke" / "runs").glob("*-sfp40-*")
    before = finished(out)
    (run / "result.json").unlink()
    started = time.time_ns()

    assert call(["table6", "--scale", "smoke", "--no-tune", "--out", str(out)]) == 0
    assert [path.parent for path, written in finished(out).items() if written > started] == [run]
    assert finished(out).keys() == before.keys()


def test_a_retrained_mask_keeps_its_zeros_and_starts_from_the_requested_weights(out):
    rows = json.loads((out / "smoke" / "lottery.json").read_text())
    again = [row for row in rows if row["from"] in ("own weights", "fresh weights")]
    runs = [json.loads(path.read_text()) for path in (out / "smoke" / "runs").glob("*-fixed*/result.json")]

    assert {row["budget"] for row in again} == {"same epochs", "same FLOPs"}
    assert all(row["seeds"] == 1 for row in again)
    assert {run["recipe"]["seed"] for run in runs} == {0, 1000}
    assert all(run["sparsity"] == pytest.approx(run["recipe"]["sparsity"], abs=1e-3) for run in runs)
    assert max(run["recipe"]["epochs"] for run in runs) > find_scale("smoke").stand_in.epochs


def test_the_search_for_a_ticket_drops_a_fifth_at_each_level_and_ends_at_the_sparsity(out):
    rows = [row for row in json.loads((out / "smoke" / "lottery.json").read_text()) if row["from"] == "lottery ticket"]

    assert [round(row["sparsity"], 4) for row in rows[:3]] == [0, 0.2, 0.36]
    assert rows[-1]["sparsity"] == 0.9
    assert rows[0]["compute"] == 1
    assert [row["compute"] for row in rows] == sorted(row["compute"] for row in rows)


def test_the_levels_of_a_search_are_those_of_the_method_and_its_results_those_of_a_run(out):
    ticket = tickets(find_scale("smoke"))[0]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    folders = (out / "smoke").rglob("*-lottery*/result.json")
    ordinary = next((out / "smoke" / "runs").glob("*-dpf*/result.json"))

    assert ticket.levels == LotteryTicket(model, ticket.sparsity).sparsities
    assert {frozenset(json.loads(path.read_text())) for path in folders} == {
        frozenset(json.loads(ordinary.read_text()))
    }


def test_results_from_a_file_equal_those_from_the_run_folders(out, tmp_path):
    file = tmp_path / "results.jsonl"
    folders = [path.parent for path in (out / "smoke").rglob("result.json")]
    file.write_text("".join(json.dumps(record(folder)) + "\n" for folder in folders))
    scale = find_scale("smoke")

    for name in ("table6", "lottery", "period-sparsity"):
        from_folders = show(find_experiment(name), scale, out)
        from_file = show(find_experiment(name), scale, tmp_path / "nothing", [file])
        assert from_file.rows == from_folders.rows
    assert str(tmp_path.parent) not in file.read_text()


def test_without_an_item_all_are_listed_with_what_they_cost(capsys):
    assert call(["--scale", "smoke"]) == 0
    said = capsys.readouterr().out

    assert all(f"{name} " in said for name in all_experiments())
    assert "trainings" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in all_experiments() if name not in (*QUICK, "claims")])
def test_every_other_item_runs_to_its_end_as_well(name, out):
    assert call([name, "--scale", "smoke", "--no-tune", "--out", str(out)]) == 0
    assert "not run" not in (out / "smoke" / f"{name}.md").read_text()


@pytest.mark.slow
def test_every_claim_about_trainings_has_its_runs(out):
    assert call(["claims", "--scale", "smoke", "--no-tune", "--out", str(out)]) == 0
    rows = json.loads((out / "smoke" / "claims.json").read_text())
    open_claims = [row["claim"] for row in rows if row["verdict"] == "not run"]

    # A benchmark and the theorems are commands of their own; three periods are more than this scale has.
    assert set(open_claims) <= {"The overhead is trivial", "The bounds of both theorems hold", PERIODS}


@pytest.mark.slow
def test_parallel_trainings_have_the_results_of_sequential_ones(out, tmp_path):
    for folder, more in ((out, []), (tmp_path, ["--workers", "2"])):
        assert call(["layers", "--scale", "smoke", "--no-tune", "--out", str(folder), *more]) == 0

    assert (tmp_path / "smoke" / "layers.json").read_text() == (out / "smoke" / "layers.json").read_text()


@pytest.mark.slow
def test_learning_rates_are_tuned_first_and_the_choice_is_used_and_saved(tmp_path):
    assert call(["table6", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    choices = json.loads((tmp_path / "smoke" / "tuning.json").read_text())
    used = {row["method"]: row["lr"] for row in json.loads((tmp_path / "smoke" / "table6.json").read_text())}

    assert {choice["method"] for choice in choices} == {"dense", "sfp", "dpf"}
    assert used["SFP"] == next(choice["lr"] for choice in choices if choice["method"] == "sfp")
    assert all(len(choice["tried"]) >= 3 for choice in choices)


def test_a_run_is_found_by_the_recipe_of_the_run_that_it_started_from(tmp_path):
    dense = Recipe(method="dense", epochs=1, batch=256, threads=1, width=4)
    run(dense, tmp_path / "dense")
    pruned = dense.changed(method="oneshot", epochs=0, init=str(tmp_path / "dense"), finetune_epochs=1)
    run(pruned, tmp_path / "pruned")
    add([record(tmp_path / "pruned")], tmp_path / "results.jsonl")
    assert str(tmp_path) not in (tmp_path / "results.jsonl").read_text()
    wanted = pruned.changed(init=weights_name(dense), threads=None)
    for store in (ResultStore.read([tmp_path / "results.jsonl"]), ResultStore.read([tmp_path / "pruned"])):
        assert store.outcome(wanted, finetuned=True) is not None
        other = wanted.changed(init=weights_name(dense.changed(seed=1)))
        assert store.outcome(other, finetuned=True) is None
