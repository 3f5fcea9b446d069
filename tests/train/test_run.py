"""A run leaves what it should, and does what its recipe says."""

import json
import re
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file

from regrow.core.units import parse_unit
from regrow.methods import registry
from regrow.methods.registry import find_method, method_options
from regrow.runs.folder import RunFolderError, read_metrics, read_recipe, read_result
from regrow.runs.recipe import Recipe, RecipeError
from regrow.train.events import EpochEnded, Finished, Started, Tracker
from regrow.train.loop import make_trainer
from regrow.train.run import run

QUICK = Recipe(data="digits", model="small", width=4, epochs=3, batch=256, threads=1)


def needs_only_a_sparsity(method):
    """Return whether a recipe need not name more, such as masks or a compressor."""
    required = {name for name, default in method_options(find_method(method)).items() if default is ...}
    return required <= {"sparsity"} and not find_method(method).takes_masks


METHODS = tuple(filter(needs_only_a_sparsity, registry.METHODS))


def final_sparsity(method, requested):
    """Return the sparsity that a method ends with: of those that are not told, it is that of their unit."""
    cls = find_method(method)
    if cls.ends_dense:
        return 0
    return requested if cls.takes_sparsity else parse_unit(method_options(cls)["unit"]).sparsity


def test_a_run_leaves_recipe_environment_metrics_model_and_result(tmp_path):
    result = run(QUICK, tmp_path / "run")
    folder = tmp_path / "run"
    assert read_recipe(folder) == QUICK
    assert json.loads((folder / "environment.json").read_text())["versions"]["torch"] == result["versions"]["torch"]
    records = read_metrics(folder)
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert read_result(folder) == result
    assert result["top1"] == records[-1]["top1"]
    weights = load_file(folder / "model.safetensors")
    zeros = sum(int((weights[f"conv{i}.weight"] == 0).sum()) for i in (1, 2, 3))
    assert zeros / result["targeted"] == pytest.approx(0.9, abs=1e-3) == pytest.approx(result["sparsity"], abs=1e-3)


def test_dpf_learns_digits_at_ninety_percent(tmp_path):
    result = run(Recipe(data="digits", epochs=12, batch=64, threads=1), tmp_path / "run")
    assert result["top1"] > 90
    assert result["sparsity"] == pytest.approx(0.9, abs=1e-4)


def test_fine_tuning_keeps_the_mask_and_uses_a_new_optimizer(tmp_path):
    recipe = QUICK.changed(finetune_epochs=2, finetune_optimizer="adam", finetune_lr=1e-3)
    result = run(recipe, tmp_path / "run")
    records = read_metrics(tmp_path / "run")
    assert [record["phase"] for record in records] == ["train"] * 3 + ["finetune"] * 2
    assert [record["flips"] for record in records[3:]] == [0, 0]
    assert records[3]["lr"] == 1e-3
    assert result["sparsity"] == records[2]["sparsity"]


def test_one_shot_prunes_after_the_last_step_of_training_and_is_then_fine_tuned(tmp_path):
    run(QUICK.changed(method="oneshot", finetune_epochs=1), tmp_path / "run")
    sparsities = [record["sparsity"] for record in read_metrics(tmp_path / "run")]
    assert sparsities == pytest.approx([0, 0, 0.9, 0.9], abs=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_at_the_requested_sparsity(tmp_path, method):
    result = run(QUICK.changed(method=method, sparsity=0.75, epochs=2, batch=64), tmp_path / "run")
    assert result["sparsity"] == pytest.approx(final_sparsity(method, 0.75), abs=5e-3)


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        ("dpf", {"every": 16}, r"the sparsity of 90\.0% is not reached: .* \(12 steps, .* is after step 0, with 0\.0%"),
        ("dpf", {"every": 16, "settle": 0.1}, r"the sparsity of 90\.0% is not reached: .* \(12 steps, every=16\)"),
        ("incremental", {"every": 20}, r"is not reached: .* \(12 steps, every=20\)"),
        ("oneshot", {"options": ("at=13",)}, "OneShot never prunes: at=13 is beyond the 12 steps of this training"),
        ("dpf", {"every": 16, "sparsity": {"conv1": 0.0, "*": 0.9}}, r"the sparsity of 90\.0% of '\*' is not reached"),
    ],
)
def test_a_recipe_too_short_for_its_sparsity_is_an_error(method, fields, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(QUICK.changed(method=method, epochs=2, **fields))


def test_a_recipe_too_short_for_a_mask_update_is_warned_of_once():
    with pytest.warns(UserWarning, match=r"DSR makes no mask update in this training \(steps: 12, every=100\)") as said:
        make_trainer(QUICK.changed(method="dsr", every="paper", epochs=2))
    assert len(said) == 1


def test_recipes_with_mask_updates_and_methods_that_need_none_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in ("dense", "dpf", "incremental", "oneshot", "snip", "sparse-momentum", "set", "sfp"):
            make_trainer(QUICK.changed(method=method))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "dfp"}, "unknown method 'dfp'. Did you mean 'dpf'?"),
        ({"method": "set", "unit": "filter"}, "set has no option unit, got 'filter'. It takes "),
        (
            {"method": "set", "options": ("drop_fractoin=0.2",)},
            "set has no option drop_fractoin, got 0.2. Did you mean 'drop_fraction'?",
        ),
        ({"method": "set", "options": ("drop_fraction",)}, "options must have the form name=value"),
        ({"method": "set", "options": ("drop_fraction=0,2",)}, "options must have the form name=value"),
        ({"unit": "filter", "options": ("criterion=rsm",)}, "criterion must be one of l2, l1, rms"),
        ({"unit": "filter", "options": ("channels=True",)}, "channels must be true or false, got 'True'"),
        ({"method": "fixed"}, "method fixed needs masks, a finished run or a model file"),
        ({"method": "fixed", "masks": "runs/none"}, "masks: runs/none does not exist"),
        ({"method": "set", "masks": "runs/none"}, "masks are only for method fixed, got 'runs/none' for set"),
        ({"method": "dense", "masks": "runs/none"}, "masks are only for method fixed, got 'runs/none' for dense"),
        (
            {"method": "fixed", "masks": "runs/none", "scope": "layer"},
            "fixed has no option scope, got 'layer'.",
        ),
        (
            {"method": "fixed", "masks": "runs/none", "options": ("drop_fraction=0.2",)},
            "fixed has no option drop_fraction, got 0.2",
        ),
        (
            {"method": "feedback", "options": ("compressor='sign'",), "finetune_epochs": 2},
            "feedback has no mask to keep",
        ),
        ({"method": "feedback"}, "feedback needs --options compressor=VALUE: see regrow methods feedback"),
        (
            {"method": "set", "options": ("drop_fraction='much'",)},
            "set: drop_fraction must be a fraction in [0, 1], got 'much' (with options drop_fraction='much')",
        ),
    ],
)
def test_an_option_that_a_method_does_not_have_is_an_error_that_lists_its_options(tmp_path, fields, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        run(QUICK.changed(**fields), tmp_path / "run")


def test_an_option_of_the_method_reaches_it(tmp_path):
    for name, options in {"still": ("drop_fraction=0.0",), "moving": ("drop_fraction=0.5",)}.items():
        run(QUICK.changed(method="set", options=options), tmp_path / name)
    assert sum(record["flips"] for record in read_metrics(tmp_path / "still")) == 0
    assert sum(record["flips"] for record in read_metrics(tmp_path / "moving")) > 0


def test_a_word_is_an_option_without_quotes(tmp_path):
    bare, quoted = (
        run(QUICK.changed(unit="filter", sparsity=0.4, options=(f"criterion={word}", "channels=true")), tmp_path / name)
        for name, word in {"bare": " rms ", "quoted": '"rms"'}.items()
    )
    assert bare["test_loss"] == quoted["test_loss"]


def test_the_mask_of_another_run_can_be_trained_from_scratch(tmp_path):
    found = run(QUICK, tmp_path / "found")
    again = run(QUICK.changed(method="fixed", masks=str(tmp_path / "found")), tmp_path / "again")
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("found", "again")]
    assert again["sparsity"] == found["sparsity"] > 0
    for name in ("conv1.weight", "conv2.weight", "conv3.weight"):
        assert torch.equal(weights[0][name] == 0, weights[1][name] == 0)
        assert not torch.equal(weights[0][name], weights[1][name])


@pytest.mark.parametrize(("include_last", "masked"), [(None, True), (True, True), (False, False)])
def test_the_mask_of_another_run_includes_the_last_layer_if_it_was_pruned(tmp_path, include_last, masked):
    found = run(QUICK.changed(method="sparse-momentum", epochs=1), tmp_path / "found")
    recipe = QUICK.changed(method="fixed", masks=str(tmp_path / "found"), include_last=include_last, epochs=1)
    again = run(recipe, tmp_path / "again")
    weights = [load_file(tmp_path / name / "model.safetensors")["fc.weight"] for name in ("found", "again")]
    assert (weights[0] == 0).any()
    assert torch.equal(weights[0] == 0, weights[1] == 0) == masked
    assert (again["sparsity"] == found["sparsity"]) == masked


def test_an_option_of_the_method_takes_precedence_over_the_value_from_the_recipe(tmp_path):
    run(QUICK.changed(method="oneshot", options=("at=6",)), tmp_path / "run")
    assert [record["sparsity"] > 0 for record in read_metrics(tmp_path / "run")] == [True] * 3


def test_a_finished_run_is_not_repeated(tmp_path):
    first = run(QUICK, tmp_path / "run")
    events = []
    assert run(QUICK, tmp_path / "run", listeners=[events.append]) == first
    assert [type(event) for event in events] == [Finished]


def test_listeners_get_start_epoch_and_end_events(tmp_path):
    events = []
    run(QUICK, tmp_path / "run", listeners=[events.append])
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(event, EpochEnded) for event in events) == 3


def test_another_recipe_in_the_same_folder_is_refused_with_the_difference(tmp_path):
    run(QUICK, tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"lr is 0\.1 there and 0\.2 here"):
        run(QUICK.changed(lr=0.2), tmp_path / "run")


def test_a_run_resumes_with_its_original_parallel_mode_and_warns(tmp_path):
    result = run(QUICK, tmp_path)
    with pytest.warns(
        UserWarning, match=r"continues with --parallel ddp, with which it was started; fsdp is ignored.*--out"
    ):
        assert run(QUICK.changed(parallel="fsdp"), tmp_path) == result


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunFolderError, match=r"not a run folder but has files \(thesis.tex"):
        run(QUICK, tmp_path)


def test_a_recipe_that_cannot_be_built_leaves_the_folder_free_for_a_better_one(tmp_path):
    with pytest.raises(RecipeError, match="Did you mean 'resnet20'"):
        run(QUICK.changed(model="resnet-20"), tmp_path / "run")
    run(QUICK, tmp_path / "run")


def test_two_runs_of_one_recipe_end_with_the_same_bits_and_another_seed_does_not(tmp_path):
    for name, recipe in {"a": QUICK, "b": QUICK, "c": QUICK.changed(seed=1)}.items():
        torch.rand(7)  # what was drawn before does not matter
        run(recipe, tmp_path / name)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_smoothed_labels_are_trained_on_and_plain_ones_evaluated():
    """The loss is (1 - s) times that of the label plus s times the mean over all classes."""
    images, labels = next(iter(make_trainer(QUICK).sets.train.epoch(0, 0)))
    losses = {}
    for smoothing in (0.0, 0.3):
        trainer = make_trainer(QUICK.changed(method="dense", label_smoothing=smoothing))
        logs = torch.log_softmax(trainer.model(images), dim=1)
        expected = (1 - smoothing) * -logs[range(len(labels)), labels].mean() - smoothing * logs.mean()
        trainer._train_batch(images, labels)
        losses[smoothing] = trainer.totals.loss / len(labels)
        assert losses[smoothing] == pytest.approx(expected.item(), rel=1e-5)
    assert losses[0.0] != losses[0.3]


def test_with_holdout_the_held_out_images_are_evaluated(tmp_path):
    result = run(QUICK.changed(holdout=200, epochs=1, every=1), tmp_path / "run")
    assert result["evaluated_on"] == "holdout"
    assert result["top1"] * 2 == pytest.approx(round(result["top1"] * 2))


def test_a_package_needed_at_the_end_is_checked_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=r'model files need safetensors: pip install "regrow\[cli\]"'):
        run(Recipe(data="digits", epochs=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_gets_the_numbers_of_every_epoch(tmp_path):
    calls = []

    class Recorded:
        def log(self, data, *, step):
            calls.append((step, data))

    run(QUICK, tmp_path / "run", listeners=[Tracker(Recorded())])
    records = read_metrics(tmp_path / "run")
    assert [step for step, _ in calls] == [1, 2, 3]
    assert [data["top1"] for _, data in calls] == [record["top1"] for record in records]
    assert calls[-1][1]["layers/conv2.weight"] == records[-1]["layers"]["conv2.weight"]
