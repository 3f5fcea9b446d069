"""What a dry run measures."""

import pytest

from regrow.runs.recipe import RecipeError
from regrow.train import dry_run
from regrow.train.loop import DivergedError, Trainer, make_trainer
from tests.train.test_run import QUICK

LONG = QUICK.changed(epochs=10_000)


def test_short_steps_are_measured_for_a_second():
    seconds = dry_run._measure(make_trainer(LONG))
    assert len(seconds) > 6
    assert sum(seconds) >= 1 > sum(seconds[:-1])


def test_a_run_shorter_than_the_measurement_is_measured_completely(monkeypatch):
    monkeypatch.setattr(dry_run, "_SECONDS", 3600.0)
    assert len(dry_run._measure(make_trainer(QUICK))) == 18


@pytest.mark.parametrize(("step", "tolerated"), [(2, False), (9, True)])
def test_a_late_divergence_without_the_ramp_does_not_fail_the_dry_run(monkeypatch, step, tolerated):
    train = Trainer._train_batch

    def diverge(self, images, labels):
        if self.step == step:
            raise DivergedError("the loss is nan")
        train(self, images, labels)

    monkeypatch.setattr(Trainer, "_train_batch", diverge)
    if tolerated:
        assert dry_run.dry_run(LONG).seconds > 0
    else:
        with pytest.raises(DivergedError):
            dry_run.dry_run(LONG)


def test_a_dry_run_reports_errors_of_the_recipe_itself():
    with pytest.raises(RecipeError, match="every must divide the 6 steps of an epoch, got 4"):
        dry_run.dry_run(QUICK.changed(method="sfp", every=4))
