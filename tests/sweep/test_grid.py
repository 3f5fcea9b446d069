"""What a sweep's file means, and what is refused."""

from importlib.metadata import EntryPoint

import pytest

from regrow.runs.recipe import Recipe, RecipeError, load_recipe
from regrow.sweep import read_sweep


def sweep(tmp_path, text):
    path = tmp_path / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return read_sweep(path)


def test_a_grid_gives_every_combination_once_and_the_last_field_changes_fastest(tmp_path):
    recipes = sweep(tmp_path, '[grid]\nmethod = ["dpf", "set"]\nsparsity = [0.8, 0.9]\nseed = [0, 1, 1]\n')
    assert [(recipe.method, recipe.sparsity, recipe.seed) for recipe in recipes] == [
        (method, sparsity, seed) for method in ("dpf", "set") for sparsity in (0.8, 0.9) for seed in (0, 1)
    ]


def test_two_spellings_of_a_method_are_trained_once(tmp_path):
    assert len(sweep(tmp_path, '[grid]\nmethod = ["one-shot", "oneshot", "OneShot"]\n')) == 1


def test_fields_at_the_top_hold_for_all_runs_and_several_grids_add_up(tmp_path):
    recipes = sweep(
        tmp_path,
        'recipe = "cifar-resnet20"\nepochs = 7\n'
        "[[grid]]\nsparsity = [0.8, 0.9]\n"
        '[[grid]]\nmethod = "dense"\nepochs = 9\nseed = [4, 5]\n',
    )
    assert [(recipe.method, recipe.sparsity, recipe.epochs) for recipe in recipes[:2]] == [
        ("dpf", 0.8, 7),
        ("dpf", 0.9, 7),
    ]
    assert [(recipe.method, recipe.seed, recipe.epochs) for recipe in recipes[2:]] == [("dense", 4, 9), ("dense", 5, 9)]
    assert {recipe.model for recipe in recipes} == {"resnet20"}


def test_a_field_that_is_a_list_takes_lists_of_lists(tmp_path):
    assert [r.lr_drops for r in sweep(tmp_path, "[grid]\nlr_drops = [[0.5], [0.3, 0.6]]\n")] == [(0.5,), (0.3, 0.6)]
    assert [r.lr_drops for r in sweep(tmp_path, "[grid]\nlr_drops = [0.3, 0.6]\n")] == [(0.3, 0.6)]


def test_a_sweep_without_a_grid_is_one_run(tmp_path):
    (tmp_path / "mine.toml").write_text(Recipe(epochs=3).to_toml(), encoding="utf-8")
    assert sweep(tmp_path, 'recipe = "mine.toml"\nseed = 4\n') == [Recipe(epochs=3, seed=4)]


def test_a_built_in_recipe_takes_precedence_over_a_file_of_the_same_name(tmp_path):
    (tmp_path / "digits").write_bytes(b"\x7fELF\xff")
    assert sweep(tmp_path, 'recipe = "digits"\n') == [load_recipe("digits")]


def test_a_method_of_another_package_is_known(tmp_path, monkeypatch):
    point = EntryPoint("elsewhere", "regrow.methods.dpf:DPF", "regrow.methods")
    monkeypatch.setattr("regrow.methods.registry.entry_points", lambda group: [point])
    assert [recipe.method for recipe in sweep(tmp_path, 'method = "elsewhere"\n')] == ["elsewhere"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "has no field 'epoch'. Did you mean 'epochs'"),
        ("[grids]\nseed = [1]", "has no field 'grids'. Did you mean 'grid'"),
        ("[grid]\nsparsty = [0.9]", r"\[grid\] in .*has no field 'sparsty'. Did you mean 'sparsity'"),
        ("[grid]\nsparsity = [0.9, 90]", r"Did you mean 0\.9\? \(in sparsity = 90\)"),
        ('[grid]\nseed = ["one"]', "seed must be a whole number, got 'one'"),
        ("[grid]\nseed = []", "seed is an empty list, so there is nothing to run"),
        ("grid = 4", "grid must be a table of lists"),
        ("grid = [4]", "grid must be a table of lists"),
        ('recipe = "digts"', "Did you mean 'digits'"),
        ('method = "sett"', "unknown method 'sett'. Did you mean 'set'"),
        ('[grid]\nmethod = ["dpf", "sett"]', "sweep.toml: unknown method 'sett'. Did you mean 'set'"),
        ("recipe = 4", "recipe must be the name of a built-in recipe or a file, got 4"),
        ("seed = ", "not a TOML file"),
    ],
)
def test_a_mistake_is_an_error_with_a_suggestion(tmp_path, text, message):
    with pytest.raises(RecipeError, match=message):
        sweep(tmp_path, text)


def test_a_sweep_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"cannot read .*none\.toml: No such file"):
        read_sweep(tmp_path / "none.toml")
