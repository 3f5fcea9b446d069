"""Damaged and hostile files: a clear error that names the file, no code executed, no hang, nothing wrong believed."""

import json
import os
import shutil
import string
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.runs.find import find_runs
from regrow.runs.folder import RunFolderError, read_metrics, read_recipe, read_result
from regrow.runs.recipe import Recipe, RecipeError
from regrow.sweep import read_sweep
from regrow.train import checkpoint
from regrow.train.run import run
from tests.train.processes import RECIPE

QUICK = RECIPE.changed(epochs=2, finetune_epochs=0, batch=256)


class EnoughError(Exception):
    pass


def interrupted(folder, recipe=QUICK):
    """A run that was left in its second epoch."""

    def leave(event):
        if getattr(event, "step", 0) == 8:
            raise EnoughError

    with pytest.raises(EnoughError):
        run(recipe, folder, listeners=[leave], save_every=0)
    return folder


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return interrupted(tmp_path_factory.mktemp("once") / "run")


@pytest.fixture
def folder(once, tmp_path):
    """A copy of an interrupted run for each test."""
    return Path(shutil.copytree(once, tmp_path / "run"))


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_checkpoint_that_was_changed_anywhere_is_refused(once, tmp_path_factory, data):
    content = bytearray((once / "checkpoint.safetensors").read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "insert", "overwrite"])):
        case "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del content[at:]
        case "insert":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=64))
        case "overwrite":
            before = bytes(content)
            new = data.draw(st.binary(min_size=1, max_size=64))
            content[at : at + len(new)] = new
            if content == before:
                return
    path = tmp_path_factory.getbasetemp() / "checkpoint.safetensors"
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors is damaged .* Remove it to start"):
        checkpoint.load(path)


def test_a_checkpoint_that_asks_for_code_to_be_run_is_refused_and_nothing_runs(tmp_path, folder):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    with pytest.raises(TypeError, match="holds tensors, numbers and texts, got Hostile"):
        checkpoint.save(folder / "checkpoint.safetensors", {"trainer": Hostile()})
    torch.save({"trainer": Hostile()}, folder / "checkpoint.safetensors")
    with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors is damaged"):
        run(QUICK, folder)
    assert not (tmp_path / "executed").exists()


def changed(path, *keys, value):
    """Write the checkpoint at `path` with another value at one place, under a right checksum."""
    state = checkpoint.load(path)
    place = state
    for key in keys[:-1]:
        place = place[key]
    if value is ...:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    checkpoint.save(path, {name: entry for name, entry in state.items() if name != "format"})


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["trainer"], ...),
        (["trainer"], "weights"),
        (["metrics"], "all"),
        (["seconds"], None),
        (["last"], 4),
        (["trainer", "step"], 10**9),
        (["trainer", "step"], -1),
        (["trainer", "step"], "two"),
        (["trainer", "tally"], {"loss": 0.0, "joy": 1}),
        (["trainer", "phase"], "finetune"),
        (["trainer", "model"], {}),
        (["trainer", "model", "conv1.weight"], torch.zeros(2, 2)),
        (["trainer", "optimizer", "param_groups"], []),
        (["trainer", "pruner"], ...),
        (["trainer", "pruner", "masks"], {}),
        (["trainer", "dynamics"], []),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_by_name(folder, keys, value):
    changed(folder / "checkpoint.safetensors", *keys, value=value)
    with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors is not a state of this run .* Remove it"):
        run(QUICK, folder)


def test_the_checkpoint_of_another_run_is_refused_until_it_is_removed(tmp_path, folder):
    other = interrupted(tmp_path / "other", QUICK.changed(width=5))
    (other / "checkpoint.safetensors").replace(folder / "checkpoint.safetensors")
    with pytest.raises(RunFolderError, match=r"is not a state of this run .*conv1\.weight"):
        run(QUICK, folder)
    (folder / "checkpoint.safetensors").unlink()
    assert run(QUICK, folder)["epoch"] == 2


def test_removed_or_truncated_metrics_are_an_error(folder):
    (folder / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl is shorter than its checkpoint expects"):
        run(QUICK, folder)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl is shorter"):
        run(QUICK, folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_damaged_result_or_line_of_metrics_is_named(tmp_path, content):
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"result\.json is damaged"):
        read_result(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n' + content + b"\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 2 is damaged"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"[" * 100_000])
def test_a_damaged_environment_is_named(folder, content):
    (folder / "environment.json").write_bytes(content)
    (interrupted_run,) = find_runs([folder])
    with pytest.raises(RunFolderError, match=r"environment\.json is damaged"):
        _ = interrupted_run.environment


TOML = st.recursive(
    st.one_of(
        st.integers(-(10**30), 10**30),
        st.floats(),
        st.booleans(),
        st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8),
        st.dates(),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
FIELDS = st.sampled_from([*Recipe.__dataclass_fields__, "recipe", "grid", "sead"])


def toml(value):
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)


def understood_or_refused(read, path):
    """Read a file; the only error there may be names it, or the recipe that it starts from."""
    try:
        read(path)
    except RecipeError as error:
        refused = str(error)
    else:
        return
    assert path.name in refused or "is neither a file nor a built-in recipe" in refused


@given(fields=st.dictionaries(FIELDS, TOML, max_size=3), grid=st.dictionaries(FIELDS, TOML, max_size=2))
@settings(max_examples=300, deadline=None)
def test_any_values_in_a_recipe_or_a_sweep_are_accepted_or_refused(tmp_path_factory, fields, grid):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    lines = [f"{name} = {toml(value)}" for name, value in fields.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    understood_or_refused(Recipe.read, path)
    if "grid" not in fields:
        path.write_text("\n".join([*lines, "[grid]", *(f"{n} = {toml(v)}" for n, v in grid.items())]), encoding="utf-8")
    understood_or_refused(read_sweep, path)


@given(content=st.one_of(st.binary(max_size=200), st.text(string.printable, max_size=200).map(str.encode)))
@settings(max_examples=200, deadline=None)
def test_any_bytes_in_place_of_a_recipe_are_refused_with_the_name_of_the_file(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp()
    (folder / "recipe.toml").write_bytes(content)
    understood_or_refused(read_recipe, folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("targets = " + "[" * 30_000, "not a TOML file"),
        ("seed = " + "9" * 5000, "not a TOML file"),
        ("a." * 50_000 + "b = 1", "the limit is 65,536 bytes"),
    ],
)
def test_a_recipe_that_would_exhaust_the_reader_is_refused(tmp_path, content, message):
    (tmp_path / "recipe.toml").write_text(content)
    with pytest.raises(RecipeError, match=message):
        read_recipe(tmp_path)


@pytest.mark.parametrize("field", ["data", "model", "method"])
def test_a_recipe_cannot_choose_a_folder_outside_of_runs(field):
    hostile = Recipe(**{field: "../../../etc/\0x"})
    assert "/" not in hostile.name()
    assert "\0" not in hostile.name()


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    (tmp_path / "recipe.toml").mkdir()
    with pytest.raises(RecipeError, match=r"cannot read .*recipe\.toml: Is a directory"):
        Recipe.read(tmp_path / "recipe.toml")
    (tmp_path / "result.json").mkdir()
    with pytest.raises(RunFolderError, match=r"cannot read .*result\.json: Is a directory"):
        read_result(tmp_path)
