"""Records of older versions are rewritten in the current form."""

import dataclasses
import json
from pathlib import Path

import pytest

from regrow.runs.recipe import Recipe
from reproduce.migrate import migrate, migrated

RESULTS = Path(__file__).parents[2] / "results"


def recipe_of(**fields):
    return Recipe.of(migrated({"key": "0", "recipe": fields})["recipe"])


@pytest.mark.parametrize(
    ("method", "old", "new"),
    [
        ("set", ["zeta=0.2"], ["drop_fraction=0.2"]),
        ("dsr", ["drop=40"], ["drop_count=40"]),
        ("rigl", ["drop=0.4"], ["drop_fraction=0.4"]),
        ("SparseMomentum", ["rate=0.2"], ["drop_fraction=0.2"]),
        ("lottery", ["drop=0.2", "rewind=1"], ["drop_fraction=0.2", "rewind=1"]),
    ],
)
def test_old_options_get_their_present_names_and_the_record_the_key_of_its_recipe(method, old, new):
    record = migrated({"key": "0", "top1": 1.5, "recipe": {"method": method, "options": old}})
    recipe = Recipe(method=method, options=tuple(new), every="paper")
    assert Recipe.of(record["recipe"]) == recipe
    assert record["key"] == recipe.key()
    assert record["top1"] == 1.5


def test_old_fields_get_their_present_names():
    old = {"method": "dpf", "drops": [0.3], "drop_factor": 0.2, "finetune_drops": [0.4], "decay_at": "pruned"}
    assert recipe_of(**old) == Recipe(
        lr_drops=(0.3,), lr_drop_factor=0.2, finetune_lr_drops=(0.4,), weight_decay_at="pruned", every="paper"
    )


def test_a_field_under_two_names_is_refused():
    with pytest.raises(ValueError, match="under its old and its new name"):
        recipe_of(drop_factor=0.2, lr_drop_factor=0.3)


@pytest.mark.parametrize("old", [{}, {"every": None}, {"every": "paper"}])
def test_the_old_default_of_the_period_is_written_out(old):
    assert recipe_of(**old).every == "paper"
    assert recipe_of(every="auto").every == "auto"
    assert recipe_of(every=16).every == 16


def test_options_that_are_fields_now_become_fields():
    old = ["settle=0.1", "stabilise=true", "threshold=soft"]
    expected = Recipe(settle=0.1, stabilize=True, options=("threshold=soft",), every="paper")
    assert recipe_of(method="dpf", options=old) == expected


def test_records_store_all_fields():
    record = migrated({"key": "0", "recipe": {"method": "dpf"}})
    assert set(record["recipe"]) == {field.name for field in dataclasses.fields(Recipe)}


def test_a_second_run_changes_nothing_and_other_lines_keep_their_bytes(tmp_path):
    path = tmp_path / "runs.jsonl"
    other = json.dumps(migrated({"key": "0", "recipe": {"method": "snip"}}), separators=(",", ": "))
    path.write_text(f'{other}\n{{"key": "0", "recipe": {{"method": "set", "options": ["zeta=0.2"]}}}}\n')
    assert migrate(path) == 1
    assert path.read_text().splitlines()[0] == other
    content = path.read_bytes()
    assert migrate(path) == 0
    assert path.read_bytes() == content


def test_a_run_folder_is_migrated_with_its_recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text('method = "dpf"\noptions = ["stabilise=true"]\n')
    assert migrate(tmp_path) == 1
    assert Recipe.read(tmp_path / "recipe.toml") == Recipe(stabilize=True, every="paper")
    assert migrate(tmp_path) == 0


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.jsonl")), ids=lambda path: path.stem)
def test_the_results_of_the_repository_are_migrated(path):
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        assert migrated(record) == record
        if "recipe" in record:
            assert record["key"] == Recipe.of(record["recipe"]).key()
            assert set(record["recipe"]) == {field.name for field in dataclasses.fields(Recipe)}
