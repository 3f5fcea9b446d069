"""Recipes are read, checked, written and told apart."""

import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regrow
from regrow import models
from regrow.cli import demo
from regrow.core.schedule import SCHEDULES
from regrow.data import names as data_names
from regrow.methods.registry import find_method, imported_methods
from regrow.runs.find import read_run
from regrow.runs.folder import read_recipe
from regrow.runs.recipe import Recipe, RecipeError, describe_recipe, load_recipe, recipe_names
from regrow.train.build import LearningRate, make_model, make_optimizer, make_schedule, training_rate


@given(
    lr=st.floats(1e-6, 10),
    lr_drops=st.lists(st.floats(0, 1), max_size=4).map(lambda drops: tuple(sorted(drops))),
    targets=st.lists(st.text(), max_size=3).map(tuple),
    every=st.sampled_from(["auto", "paper"]) | st.integers(1, 1000),
    bf16=st.booleans(),
)
def test_a_recipe_written_as_toml_is_read_back_as_it_was(tmp_path_factory, **fields):
    recipe = Recipe(**fields)
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert Recipe.read(path) == recipe
    assert Recipe.read(path).key() == recipe.key()


@pytest.mark.parametrize(
    ("spelled", "written"),
    [
        ("one-shot", "oneshot"),
        ("OneShot", "oneshot"),
        ("SparseMomentum", "sparse-momentum"),
        ("sparse_momentum", "sparse-momentum"),
        ("DPF", "dpf"),
        ("MyOwn", "MyOwn"),
    ],
)
def test_all_spellings_of_a_method_give_the_same_recipe(spelled, written):
    for recipe in (Recipe(method=spelled), Recipe.of({"method": spelled}), Recipe().changed(method=spelled)):
        assert recipe.method == written
        assert (recipe.key(), recipe.name()) == (Recipe(method=written).key(), Recipe(method=written).name())


@pytest.mark.parametrize(
    ("fields", "filters"),
    [
        ({"method": "sfp"}, True),
        ({"method": "dpf"}, False),
        ({"method": "dpf", "unit": "filter"}, True),
        ({"method": "srste", "unit": "2:4"}, False),
        ({"method": "not-installed-here"}, False),
        ({"method": "not-installed-here", "unit": "filter"}, True),
    ],
)
def test_filters_are_pruned_if_the_unit_or_the_method_says_so(fields, filters):
    assert Recipe(**fields).prunes_filters is filters


def test_a_run_folder_is_named_without_torch_and_as_in_earlier_versions():
    code = (
        "import sys; from regrow.runs.recipe import Recipe; from regrow.runs.outcomes import identity\n"
        "recipes = [Recipe(method=method) for method in ('dense', 'srste', 'dpf', 'fixed', 'feedback')]\n"
        "print(*(identity(recipe, finetuned=False).name() for recipe in recipes))\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    written = ("dense", "srste", "dpf90", "fixed90", "feedback90")
    assert done.stdout.split() == [f"digits-small-{method}-s0" for method in written]


def test_every_method_of_the_package_has_one_spelling_and_recorded_results_keep_their_keys():
    ours = {cls.__name__ for cls in imported_methods() if cls.__module__.startswith("regrow.")}
    spellings = {Recipe(method=name).method for name in ours}
    assert all(name.islower() for name in spellings)
    assert {find_method(name).__name__ for name in spellings} == ours
    results = Path(__file__).parents[2] / "results"
    rows = [json.loads(line) for path in results.rglob("*.jsonl") for line in path.read_text().splitlines()]
    recorded = [row for row in rows if "key" in row and "recipe" in row]
    assert len({row["recipe"]["method"] for row in recorded}) > 10
    assert all(Recipe.of(row["recipe"]).key() == row["key"] for row in recorded)


def test_the_key_distinguishes_runs_but_ignores_device_and_threads():
    recipe = Recipe()
    assert recipe.changed(threads=3, device="cuda").key() == recipe.key()
    for field, value in {"lr": 0.3, "seed": 1, "lr_drops": (0.5,), "every": 8, "bf16": True}.items():
        assert recipe.changed(**{field: value}).key() != recipe.key()


def test_options_that_were_added_later_count_only_when_they_are_set():
    recipe = Recipe()
    fields = {name: value for name, value in vars(recipe).items() if name not in ("norm_decay", "label_smoothing")}
    assert Recipe.of(fields).key() == recipe.key()
    assert len({recipe.changed(label_smoothing=smoothing).key() for smoothing in (0.0, 0.1, 0.2)}) == 3
    assert recipe.changed(norm_decay=False).key() != recipe.key()


def test_weight_decay_can_leave_out_batch_norm():
    for kind in ("sgd", "adam"):
        recipe = Recipe(weight_decay=0.01, norm_decay=False)
        model = make_model(recipe)
        spared = {
            id(parameter)
            for group in make_optimizer(recipe, model, kind=kind, lr=0.1).param_groups
            for parameter in group["params"]
            if group["weight_decay"] == 0
        }
        norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        assert norms
        assert spared == {id(parameter) for module in norms for parameter in module.parameters()}
        [everything] = make_optimizer(recipe.changed(norm_decay=True), model, kind=kind, lr=0.1).param_groups
        assert (everything["weight_decay"], len(everything["params"])) == (0.01, len(list(model.parameters())))


def test_steps_too_short_to_share_have_one_thread_and_the_runs_are_the_same():
    assert load_recipe("digits").threads == 1
    same = Recipe(data="digits", model="small", ramp_by="step", epochs=30, batch=64, lr=0.1)
    assert load_recipe("digits").key() == same.key()


def test_settle_and_stabilize_are_fields_that_change_no_key_by_default():
    assert Recipe(settle=None, stabilize=False).key() == Recipe().key()
    assert len({Recipe().key(), Recipe(settle=0.1).key(), Recipe(stabilize=True).key()}) == 3
    with pytest.raises(RecipeError, match=r"settle must be a fraction in \[0, 1\], got 10"):
        Recipe(settle=10.0)
    assert {recipe.threads for recipe in demo.RECIPES.values()} == {1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing must be in .* got 1"),
        ({"sparsity": 90}, "Did you mean 0.9"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"seed": 2**63}, r"seed must be below 2\*\*63, got 9223372036854775808"),
        ({"lr": "fast"}, "lr must be a finite number, got 'fast'"),
        ({"lr": float("nan")}, "lr must be a finite number, got nan"),
        (
            {"scope": "globl"},
            "scope must be one of global, layer, er, erk, redistributed, got 'globl'. Did you mean 'global'",
        ),
        ({"wieght_decay": 0.1}, "Did you mean 'weight_decay'"),
        ({"lr_drops": [0.75, 0.5]}, "ascending"),
        ({"lr_drops": [150, 225]}, "a fraction in \\[0, 1\\], got 150"),
        ({"bf16": 1}, "bf16 must be true or false, got 1"),
        ({"targets": "conv1"}, "targets must be a list, each item a text"),
    ],
)
def test_a_wrong_field_is_named_with_a_correct_value(fields, message):
    with pytest.raises(RecipeError, match=message):
        Recipe.of(fields)


def test_an_error_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("lr = 0.1\nepoch = 3\n")
    with pytest.raises(RecipeError, match=r"mine\.toml has no field 'epoch'. Did you mean 'epochs'"):
        Recipe.read(path)
    path.write_text("lr = \n")
    with pytest.raises(RecipeError, match=r"mine\.toml is not a TOML file"):
        Recipe.read(path)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_package_names_a_network_and_data_that_exist(name):
    recipe = load_recipe(name)
    assert describe_recipe(name)
    assert recipe.data in (*data_names(), "imagenet")
    options = {name: value for name in ("width", "stem_stride") if (value := getattr(recipe, name)) is not None}
    assert models.build(recipe.model, **options).architecture.name == recipe.model


def test_the_papers_ramp_ends_at_the_second_drop():
    for name, epoch in {"cifar-resnet20": 225, "cifar-wrn28-2": 120, "imagenet-resnet50": 60}.items():
        recipe = load_recipe(name)
        assert recipe.ramp_fraction * recipe.epochs == pytest.approx(epoch)


def test_the_papers_imagenet_rate_rises_from_a_tenth_and_drops_at_epochs_30_60_80():
    recipe, steps = load_recipe("imagenet-resnet50"), 1252
    rate = training_rate(recipe, recipe.epochs * steps)
    assert rate(0) == pytest.approx(0.1, rel=1e-3)
    assert rate(5 * steps) == rate(30 * steps - 1) == pytest.approx(0.4)
    assert [rate(epoch * steps) for epoch in (30, 60, 80)] == pytest.approx([0.04, 0.004, 0.0004])
    assert [rate(epoch * steps - 1) for epoch in (60, 80)] == pytest.approx([0.04, 0.004])


@given(warmup=st.integers(0, 50), start=st.floats(0, 1), t=st.integers(0, 200))
def test_the_rate_never_exceeds_its_peak_and_is_never_zero(warmup, start, t):
    rate = LearningRate(peak=0.2, drops=(100, 150), factor=0.1, warmup=warmup, warmup_from=start)
    assert 0 < rate(t) <= 0.2 * (1 + 1e-12)


def test_changing_nothing_gives_an_equal_recipe():
    recipe = load_recipe("cifar-small")
    assert recipe.changed() == recipe == Recipe.of(dataclasses.asdict(recipe))


@pytest.mark.parametrize(
    "text",
    [
        'sparsity = { "layer4.*" = 0.95, "*" = 0.8 }',
        '[sparsity]\n"layer4.*" = 0.95\n"*" = 0.8',
        'sparsity = "layer4.*=0.95,*=0.8"',
        'sparsity = " layer4.* = 0.95 , * = 0.80 "',
    ],
)
def test_a_sparsity_for_each_pattern_is_read_from_a_table_or_a_text(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    recipe = Recipe.read(tmp_path / "mine.toml")
    assert recipe == Recipe(sparsity={"layer4.*": 0.95, "*": 0.8})
    assert recipe.level == {"layer4.*": 0.95, "*": 0.8}
    assert Recipe.of(tomllib.loads(recipe.to_toml())) == recipe
    assert Recipe.of(json.loads(json.dumps(dataclasses.asdict(recipe)))).key() == recipe.key()
    assert recipe.name() == "digits-small-dpf95-80-s0"
    assert recipe.sparsity_title == "layer4.* 95 %, * 80 %"


def test_the_order_of_patterns_is_part_of_the_recipe():
    first, second = {"conv*": 0.5, "conv1": 0.9}, {"conv1": 0.9, "conv*": 0.5}
    assert Recipe(sparsity=first).key() != Recipe(sparsity=second).key()


@pytest.mark.parametrize(
    ("sparsity", "message"),
    [
        ("most", "sparsity must be a number in .0, 1., or one for each of several patterns, .* got 'most'"),
        ("a=0.5,b", "got 'a=0.5,b'"),
        ("a=0.5,a=0.6", "got 'a=0.5,a=0.6'"),
        ({}, "got ''"),
        ({"a,b": 0.5}, "got 'a,b=0.5'"),
        ({"a": 95, "*": 0.8}, "sparsity of 'a' must be in .0, 1., got 95. Did you mean 0.95"),
        ({"a": "0.5"}, "sparsity of 'a' must be a number in .0, 1., got '0.5'"),
        (True, "sparsity must be a number in .0, 1., got True"),
        ([0.5], "sparsity must be a number in .0, 1., got"),
    ],
)
def test_a_wrong_sparsity_is_named(sparsity, message):
    with pytest.raises(RecipeError, match=message):
        Recipe.of({"sparsity": sparsity})


def test_a_recipe_names_its_schedule(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "late", lambda final, end, every: lambda t: final if t >= end else 0.0)
    recipe = Recipe(epochs=4, schedule="late", sparsity={"conv1": 0.5, "*": 0.8})
    late = make_schedule(recipe, steps=10)
    assert [late["conv1"](29), late["conv1"](30), late["*"](30)] == [0.0, 0.5, 0.8]
    assert make_schedule(Recipe(epochs=4), steps=10) == regrow.Cubic(0.9, end=30, every=10)
    assert make_schedule(Recipe(epochs=4, schedule="constant"), steps=10) == 0.9
    with pytest.raises(
        RecipeError, match=r"schedule must be one of constant, cubic, late, got 'cubik'\. Did you mean 'cubic'"
    ):
        Recipe(schedule="cubik")


@pytest.mark.parametrize("option", ["settle=0.1", "stabilize=true", "every=8", "scope=erk"])
def test_an_option_that_is_a_field_is_refused_so_that_a_setting_has_one_spelling(option):
    name = option.partition("=")[0]
    with pytest.raises(RecipeError, match=f"{name} is a field of recipes: --{name}"):
        Recipe(options=(option,))


def test_the_folder_of_an_older_run_keeps_the_period_that_was_the_default(tmp_path):
    (tmp_path / "recipe.toml").write_text('method = "dpf"\nepochs = 5\n', encoding="utf-8")
    assert read_recipe(tmp_path) == Recipe(epochs=5, every="paper")
    assert Recipe.read(tmp_path / "recipe.toml").every == "auto"  # a recipe that a user wrote
    record = {"recipe": {"epochs": 5, "every": None}, "top1": 50.0, "phase": "train"}
    (tmp_path / "result.json").write_text(json.dumps(record), encoding="utf-8")
    assert read_run(tmp_path).recipe.every == "paper"
