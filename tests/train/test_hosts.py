"""Methods attached by their names in a training of known length, as the callbacks of other frameworks do it."""

import pytest
import torch
from torch import nn

import regrow
from regrow.methods.registry import attach


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def attached(method, total_steps, **options):
    model = net()
    return attach(method, model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps, options), model


def test_a_number_becomes_a_ramp_over_three_quarters_of_the_steps():
    assert attached("dpf", 40, sparsity=0.9)[0].schedule == regrow.Cubic(0.9, end=30)
    pruner, _ = attached("incremental", 40, sparsity={"0": 0.5, "*": regrow.Constant(0.8)})
    assert pruner.schedules == {"0": regrow.Cubic(0.5, end=30), "*": regrow.Constant(0.8)}
    assert attached("static", 40, sparsity={"0": 0.5, "*": 0.8})[0].levels == {"0": 0.5, "*": 0.8}


@pytest.mark.parametrize("method", ["dpf", "incremental", "dns"])
def test_a_schedule_that_ends_after_the_training_is_an_error(method):
    with pytest.raises(ValueError, match=r"the sparsity of 90\.0% is not reached: its ramp ends at step 60, "):
        attached(method, 40, sparsity=regrow.Cubic(0.9, end=60))
    with pytest.raises(ValueError, match=r"of 90\.0% of '\*' is not reached"):
        attached(method, 40, sparsity={"0": 0.5, "*": regrow.Cubic(0.9, end=60)})


def test_a_schedule_that_ends_after_the_likely_length_is_a_warning():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"the sparsity of 90\.0% is not reached"):
        attach("dpf", model, optimizer, 40, {"sparsity": regrow.Cubic(0.9, end=60)}, likely=True)
