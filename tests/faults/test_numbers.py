"""Numbers that are none: wherever they appear, training stops by name before they reach a checkpoint."""

import math

import pytest
import torch

from regrow.train.loop import DivergedError, Trainer
from tests.train.processes import RECIPE

QUICK = RECIPE.changed(epochs=3, finetune_epochs=0, batch=256)
STEPS = 6


def in_a_weight(trainer):
    trainer.model.conv1.weight.data[0, 0, 0, 0] = math.nan


def in_a_statistic(trainer):
    trainer.model.bn1.running_var[0] = math.inf


def in_a_gradient(trainer):
    trainer.model.fc.bias.register_hook(lambda gradient: torch.full_like(gradient, math.inf))


@pytest.mark.parametrize("poison", [in_a_weight, in_a_statistic, in_a_gradient])
@pytest.mark.parametrize("method", ["dpf", "set", "dense"])
def test_a_nan_ends_training_within_its_epoch_and_is_never_saved(poison, method):
    trainer, epochs = Trainer(QUICK.changed(method=method, every="paper")), []

    def after_step():
        if trainer.step == STEPS + 2:
            poison(trainer)

    with pytest.raises(DivergedError, match=r"(the loss is nan|is no longer finite) at step \d+ \(epoch [23],"):
        trainer.run(after_step, epochs.append)
    assert [record["epoch"] for record in epochs] == [1]
    with pytest.raises(DivergedError):
        trainer.state_dict()
