"""Records of older versions are rewritten with the current names."""

import json
from pathlib import Path

import pytest

from regrow.runs.recipe import Recipe
from reproduce.migrate import migrate, migrated

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("method", "old", "new"),
    [
        ("dpf", ["settle=0.1", "stabilise=true"], ["settle=0.1", "stabilize=true"]),
        ("set", ["zeta=0.2"], ["drop_fraction=0.2"]),
        ("dsr", ["drop=40"], ["drop_count=40"]),
        ("rigl", ["drop=0.4"], ["drop_fraction=0.4"]),
        ("lottery", ["drop=0.2", "rewind=1"], ["drop_fraction=0.2", "rewind=1"]),
    ],
)
def test_old_options_get_their_present_names_and_the_record_the_key_of_its_recipe(method, old, new):
    record = migrated({"key": "0", "top1": 1.5, "recipe": {"method": method, "options": old}})
    assert record["recipe"] == {"method": method, "options": new}
    assert record["key"] == Recipe(method=method, options=tuple(new)).key()
    assert record["top1"] == 1.5


def test_old_fields_get_their_present_names():
    old = {"method": "dpf", "drops": [0.3], "drop_factor": 0.2, "finetune_drops": [0.4], "decay_at": "pruned"}
    record = migrated({"key": "0", "recipe": old})
    assert record["recipe"] == {
        "method": "dpf",
        "lr_drops": [0.3],
        "lr_drop_factor": 0.2,
        "finetune_lr_drops": [0.4],
        "weight_decay_at": "pruned",
    }
    assert record["key"] == Recipe.of(record["recipe"]).key()


def test_a_second_run_changes_nothing_and_other_lines_keep_their_bytes(tmp_path):
    path = tmp_path / "runs.jsonl"
    other = '{"recipe":{"method":"snip"},  "key":"as it was"}'
    path.write_text(f'{other}\n{{"key": "0", "recipe": {{"method": "set", "options": ["zeta=0.2"]}}}}\n')
    assert migrate(path) == 1
    assert path.read_text().splitlines()[0] == other
    content = path.read_bytes()
    assert migrate(path) == 0
    assert path.read_bytes() == content


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.jsonl")), ids=lambda path: path.stem)
def test_the_results_of_the_repository_are_migrated(path):
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        assert migrated(record) == record
        if "recipe" in record:
            assert record["key"] == Recipe.of(record["recipe"]).key()
