"""What each item runs: the paper's settings at the paper's scale, and never a number for what was not run."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import torch

from regrow import models
from regrow.methods.registry import METHODS, find_method
from regrow.report import published
from regrow.runs.find import Run
from regrow.runs.recipe import Recipe, UsageError
from regrow.train.build import make_model, make_optimizer, make_pruner
from reproduce.experiments import all_experiments, find_experiment
from reproduce.figures import period_batch
from reproduce.results import ResultStore
from reproduce.scales import UNSCALED, ScaleName, TunedRate, find_scale
from reproduce.tables import EVERY_METHOD, periods
from reproduce.tuning import to_tune
from reproduce.views import accuracy

ITEMS = sorted(all_experiments())
SCALES = ("paper", "cpu")
RESULTS = Path(__file__).parents[2] / "results"


def missing(name, scale):
    return ResultStore().missing(find_experiment(name).cells(find_scale(scale), ResultStore()))


def trained_period(recipe, steps):
    """Return the steps between mask updates that a training of `steps` steps per epoch has."""
    recipe = recipe.changed(data="digits", model="small", width=4, stem_stride=None)
    model = make_model(recipe)
    return make_pruner(recipe, model, make_optimizer(recipe, model, kind="sgd", lr=0.1), steps).every


def test_all_methods_but_those_named_on_the_pages_have_periods_scaled_to_the_length_of_training():
    scale = find_scale("cpu")
    methods = [name for name in METHODS if name not in UNSCALED]
    named = {column.title: [column.cell(scale, ("resnet20", 0.9))] for column in EVERY_METHOD}

    assert {scale.recipe("resnet20", method, 0.9).every for method in methods} == {"auto"}
    assert {scale.recipe("resnet20", method, 0.9).every for method in UNSCALED} == {"paper"}
    assert "SparseMomentum keeps its own" in periods(scale, named)
    assert periods(find_scale("paper"), named) == ""


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name in ITEMS if name != "picture"])
def test_missing_results_are_marked_not_run_and_have_no_number(name, scale):
    view = find_experiment(name).view(find_scale(scale), ResultStore())

    assert re.search("not run", view.text, re.IGNORECASE)
    assert all(row.get("mean") is None for row in view.rows)
    assert not view.figures


def test_a_training_that_diverged_has_the_papers_star_and_is_not_run_again():
    scale = find_scale("cpu")
    cells = find_experiment("table1").cells(scale, ResultStore())
    [cell] = [cell for cell in cells if (cell.recipes[0].method, cell.recipes[0].sparsity) == ("dsr", 0.95)]
    runs = [Run(Path("r"), recipe, None, {"diverged": "the loss is nan", "phase": "train"}) for recipe in cell.recipes]
    store = ResultStore(runs)
    view = find_experiment("table1").view(scale, store)
    [row] = [row for row in view.rows if (row["method"], row["sparsity"]) == ("DSR", 0.95)]

    assert "| ★ diverged (3) |" in view.text
    assert (row["mean"], row["seeds"], row["diverged"]) == (None, 0, 3)
    assert not {recipe.key() for recipe in store.missing(cells)} & {recipe.key() for recipe in cell.recipes}
    assert accuracy(ResultStore([*runs[1:], finished(cell.recipes[0])]), cell) == "60.00 (1, ★ 2 more diverged)"


def finished(recipe):
    return Run(Path("f"), recipe, {"top1": 60.0})


def test_sparse_momentum_on_imagenet_leaves_the_last_layer_dense_as_the_papers_parameters_say():
    recipes = [recipe for recipe in missing("table3", "paper") if recipe.method == "sparse-momentum"]
    view = find_experiment("table3").view(find_scale("paper"), ResultStore())
    printed = {row["sparsity"]: row["paper_top1"] for row in view.rows if row["method"] == "SparseMomentum"}
    with torch.device("meta"):
        model = models.build("resnet50", classes=1000)
    last = max(parameter.numel() for name, parameter in model.named_parameters() if name.startswith("fc"))
    rows = [row for row in published.table("imagenet") if row.method == "SparseMomentum"]

    assert {recipe.include_last for recipe in recipes} == {False}
    assert printed == {0.8: 74.59, 0.9: 72.65}
    assert all(row.parameters > last + (1 - row.sparsity) * (25_557_032 - last) for row in rows)


@pytest.mark.parametrize("number", [1, 2, 4, 6])
def test_a_table_at_the_papers_scale_has_every_cell_of_the_paper(number):
    table = published.TABLES[number - 1]
    view = find_experiment(f"table{number}").view(find_scale("paper"), ResultStore())
    ours = {(row["network"], row["sparsity"], row["method"]): row for row in view.rows}

    for row in published.table(table):
        mine = ours[row.network, row.sparsity, row.method + (" + FT" if row.fine_tuned else "")]
        assert mine["paper_mean"] == row.mean, row


def test_the_papers_scale_is_the_papers_protocol():
    recipes = {
        (recipe.model, recipe.method, recipe.sparsity, recipe.seed): recipe
        for recipe in [*missing("table2", "paper"), *missing("table1", "paper"), *missing("table3", "paper")]
    }
    resnet, wide = recipes["resnet20", "dpf", 0.95, 2], recipes["wrn28-8", "dpf", 0.999, 0]

    assert (resnet.epochs, resnet.batch, resnet.lr, resnet.weight_decay, resnet.lr_drops) == (
        300,
        128,
        0.2,
        1e-4,
        (0.5, 0.75),
    )
    assert (wide.epochs, wide.lr, wide.weight_decay, wide.lr_drop_factor) == (200, 0.1, 5e-4, 0.2)
    assert recipes["resnet20", "oneshot", 0.9, 0].finetune_epochs == 60
    assert recipes["resnet50", "dpf", 0.8, 0].batch == 1024
    assert {seed for *_, seed in recipes} == {0, 1, 2}


def test_a_run_with_fine_tuning_stands_for_the_training_without():
    recipes = missing("table2", "cpu")

    assert [recipe.finetune_epochs for recipe in recipes if recipe.method == "dpf"] == [2] * 9
    assert len(recipes) == 3 + 3 * 9


def test_the_cpu_scale_trains_the_recipe_that_the_command_line_trains():
    [recipe] = [r for r in missing("scope", "cpu") if (r.scope, r.sparsity, r.seed) == ("layer", 0.9, 1)]

    assert (recipe.model, recipe.every, recipe.epochs, recipe.channels_last) == ("resnet20", "auto", 12, True)


def test_the_usual_period_is_the_methods_own_so_that_its_run_is_shared():
    shared = {recipe.key() for recipe in missing("scope", "cpu")}

    assert {recipe.every for recipe in missing("period-sparsity", "cpu")} == {"auto", 16, 64, 256}
    assert [recipe.every for recipe in missing("period-sparsity", "cpu") if recipe.key() in shared] == ["auto"] * 3
    assert {recipe.every for recipe in missing("period-sparsity", "paper")} == {"paper", 1, 2, 4, 8, 32, 64}


@pytest.mark.parametrize("name", ["paper", "cpu", "small", "digits", "smoke"])
def test_a_column_of_periods_is_the_same_period_for_every_batch(name):
    steps = {"digits": 1_437, "smoke": 256}.get(name, 50_000)
    for (batch, period), cell in period_batch(find_scale(name)).cells.items():
        for recipe in cell.recipes:
            assert recipe.batch == int(batch)
            assert trained_period(recipe, steps // recipe.batch) == int(period)


@pytest.mark.parametrize("method", ["dpf", "incremental", "rigl", "set", "dsr"])
def test_the_papers_trainings_have_the_methods_own_period_whatever_the_batch(method):
    for network, batch, images in (("resnet20", 1024, 50_000), ("wrn28-2", 128, 45_000)):
        steps = images // batch
        own = {"dpf": 16, "rigl": 100, "dsr": 100}.get(method, steps)
        assert trained_period(find_scale("paper").recipe(network, method, 0.9, batch=batch), steps) == own


@pytest.mark.parametrize(("scale", "method"), [("cpu", "sparse-momentum"), ("digits", "sparse-momentum")])
def test_methods_whose_period_is_not_scaled_keep_it_on_all_data(scale, method):
    assert trained_period(find_scale(scale).recipe("resnet20", method, 0.9), 21) == 21
    assert {name for name in METHODS if not find_method(name).scales_period} == set(UNSCALED)


def test_acdc_has_the_phases_of_its_authors_for_the_data():
    tenths = [0.05 + each / 10 for each in range(9)]
    for scale in ("paper", "cpu", "small"):
        [option] = find_scale(scale).recipe("resnet20", "acdc", 0.9).options
        assert json.loads(option.removeprefix("switches=")) == pytest.approx(tenths)
    assert find_scale("digits").recipe("small", "acdc", 0.9).options == ()


def test_unknown_items_and_scales_are_errors_with_a_suggestion():
    with pytest.raises(UsageError, match=r"lotery.*'lottery'"):
        find_experiment("lotery")
    with pytest.raises(UsageError, match=r"papr.*'paper'"):
        find_scale("papr")


@pytest.mark.parametrize("name", ITEMS)
def test_every_item_lists_the_learning_rates_to_tune(name):
    scale = find_scale("digits").changed(rates={}, seeds=(0,))
    wanted = to_tune(scale, find_experiment(name).cells(scale, ResultStore()))

    assert {network for network, _, _ in wanted} <= {"small"}
    assert not {method for _, method, _ in wanted} & {"fixed", "lottery"}


def test_a_run_without_fine_tuning_is_preferred_for_the_result_of_training(tmp_path):
    rows = [json.loads(line) for line in (RESULTS / "tuning" / "jpeg-resnet8.jsonl").read_text().splitlines()]
    same = [row for row in rows if row["recipe"]["method"] == "dpf" and row["recipe"]["lr"] == 0.2]
    plain = [row for row in same if row["recipe"]["finetune_epochs"] == 0]
    assert len(plain) == 1
    assert len(same) > 1
    for order in (same, same[::-1]):
        path = tmp_path / "records.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in order))
        outcome = ResultStore.read([path]).outcome(Recipe.of(plain[0]["recipe"], "records"))
        assert outcome.final["top1"] == plain[0]["top1"]


def test_one_shot_pruning_starts_from_the_dense_run():
    scale = find_scale("digits").changed(rates={("small", "dense"): TunedRate(0.3)})

    assert scale.recipe("small", "oneshot", 0.9).lr == 0.3
    assert find_scale("digits").recipe("small", "oneshot", 0.9).lr == 0.1  # its own, where it was tuned


def test_the_table_says_how_often_masks_were_updated():
    scale = find_scale("cpu").changed(seeds=(0,))
    cells = find_experiment("table1").cells(scale, ResultStore())
    runs = [
        Run(Path("f"), cell.recipes[0], {"top1": 60.0, "mask_updates": {"dpf": 3519, "dense": 0}[method]})
        for cell in cells
        if (method := cell.recipes[0].method) in ("dpf", "dense")
    ]
    view = find_experiment("table1").view(scale, ResultStore(runs))

    assert "Mask updates in a training: 3,519 by DPF." in view.text
    assert {row["mask_updates"] for row in view.rows if row["method"] == "DPF"} == {3519}


def test_accuracy_is_drawn_against_the_time_of_training():
    scale = find_scale("cpu").changed(seeds=(0,))
    epochs = [
        {"epoch": n, "phase": "train", "top1": 50.0 + n, "seconds": 1800.0, "images_per_second": 25.0} for n in (1, 2)
    ]
    cells = find_experiment("overhead").cells(scale, ResultStore())
    runs = [Run(Path("f"), cell.recipes[0], {"top1": 52.0, "epochs": epochs}) for cell in cells]
    figures = {figure.name: figure for figure in find_experiment("overhead").view(scale, ResultStore(runs)).figures}

    assert figures["overhead-time"].description == "dense: 52.00 % after 1 hours; dpf: 52.00 % after 1 hours"

    untimed = [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in epochs]
    runs = [Run(Path("f"), cell.recipes[0], {"top1": 52.0, "epochs": untimed}) for cell in cells]
    untimed_figures = find_experiment("overhead").view(scale, ResultStore(runs)).figures
    assert "overhead-time" not in {figure.name for figure in untimed_figures}


def test_every_scale_of_the_command_line_exists_under_its_name():
    assert [find_scale(name).name for name in get_args(ScaleName)] == list(get_args(ScaleName))
    with pytest.raises(UsageError, match=f"The scales are {', '.join(get_args(ScaleName))}"):
        find_scale("big")
