"""`regrow sweep` as people call it."""

import pytest

from regrow.train.run import run
from tests.cli.test_cli import call
from tests.sweep.test_run_all import QUICK


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(QUICK.to_toml() + "[grid]\nseed = [0, 1]\n", encoding="utf-8")
    return path


def test_a_sweep_is_listed_run_and_found_finished(capsys, tmp_path, sweep):
    runs = tmp_path / "[bold]runs"
    arguments = ("sweep", sweep, "--out", runs)
    code, said, _ = call(capsys, *arguments, "--dry-run")
    assert code == 0
    assert said.count("to do") == 2
    assert "2 runs, 0 finished. Nothing was started." in said
    assert not runs.exists()
    code, said, _ = call(capsys, *arguments, "--workers", "1")
    assert code == 0
    assert said.startswith("2 runs, 1 at a time\n1/2  digits-small-dpf90-s0-")
    assert f"all finished. Compare them: regrow report {runs}" in said
    code, said, _ = call(capsys, *arguments, "--dry-run")
    assert "2 runs, 2 finished" in said
    assert said.count("finished  top-1") == 2
    code, said, _ = call(capsys, *arguments)
    assert code == 0
    assert said.startswith("2 runs, 2 of them finished\n")


def test_runs_are_not_nested(capsys, tmp_path, sweep):
    run(QUICK, tmp_path / "run")
    for arguments in (("sweep", sweep), ("sweep", sweep, "--dry-run"), ("train", "digits")):
        for folder in (tmp_path / "run", tmp_path / "run" / "a" / "b"):
            code, said, errors = call(capsys, *arguments, "--out", folder)
            assert (code, said) == (1, "")
            other = (
                "holds another run" if (arguments[0], folder.name) == ("train", "run") else "is the folder of one run"
            )
            assert f"{tmp_path / 'run'} {other}" in errors
    assert not (tmp_path / "run" / "a").exists()


def test_a_recipe_file_of_the_user_is_not_a_run_folder(capsys, tmp_path, sweep):
    (tmp_path / "recipe.toml").write_text(QUICK.to_toml(), encoding="utf-8")
    assert call(capsys, "sweep", sweep, "--out", tmp_path / "runs", "--dry-run")[0] == 0


def test_a_failed_run_is_named_with_its_reason_and_sets_the_exit_code(capsys, tmp_path, sweep):
    sweep.write_text(sweep.read_text() + 'targets = ["conv9"]\n')
    code, said, errors = call(capsys, "sweep", sweep, "--out", tmp_path / "runs")
    assert code == 1
    assert "2 of 2 runs failed" in errors
    assert errors.count("no weight matches target 'conv9'") == 2
    assert "Traceback" not in errors + said


@pytest.mark.parametrize(
    ("option", "value", "least"),
    [("workers", 0, 1), ("workers", -1, 1), ("cpus", 0, 1), ("gpus", -1, 0), ("minutes", 0, 1), ("retries", -1, 0)],
)
def test_an_option_out_of_range_is_refused(capsys, tmp_path, sweep, option, value, least):
    code, _, errors = call(capsys, "sweep", sweep, "--out", tmp_path / "runs", f"--{option}", value)
    assert (code, errors) == (2, f"regrow: {option} must be at least {least}, got {value}\n")
    assert not (tmp_path / "runs").exists()


def test_a_misspelled_field_is_an_error_with_a_suggestion(capsys, tmp_path, sweep):
    sweep.write_text("sparsty = 0.9\n")
    code, _, errors = call(capsys, "sweep", sweep)
    assert code == 2
    assert "Did you mean 'sparsity'" in errors
