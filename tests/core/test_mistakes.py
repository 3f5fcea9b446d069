"""Mistakes of new users: each call is answered with a message that says what is wrong and what would be right."""

import warnings

import pytest
import torch
from torch import nn

import regrow


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 20)).square().mean().backward()
    optimizer.step()


def dpf(**options):
    return regrow.DPF(*parts(), **{"sparsity": 0.9, **options})


def rebuilt_optimizer():
    model, optimizer = parts()
    pruner = regrow.DPF(model, optimizer, sparsity=0.9)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert pruner.sparsity < 0.9


def replaced_layer():
    model, optimizer = parts()
    pruner = regrow.DPF(model, optimizer, sparsity=0.9)
    model[0] = nn.Linear(20, 30)
    return pruner.sparsity


def assigned_state():
    model, optimizer = parts()
    pruner = regrow.DPF(model, optimizer, sparsity=0.9)
    model.load_state_dict(parts()[0].state_dict(), assign=True)
    return pruner.sparsity


def resumed_without_the_pruner():
    model, optimizer = parts()
    regrow.DPF(model, optimizer, sparsity=0.9)
    step(model, optimizer)
    again, other = parts()
    pruner = regrow.DPF(again, other, sparsity=0.9)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    step(again, other)
    assert pruner.step == 1


def trained_while_dense():
    model, optimizer = parts()
    pruner = regrow.DPF(model, optimizer, sparsity=0.9)
    with pruner.dense():
        step(model, optimizer)


def saved_too_early(folder):
    model, optimizer = parts()
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=100))
    step(model, optimizer)
    regrow.save(model, folder / "model.regrow")
    pruner.detach()


def attached_twice():
    model, optimizer = parts()
    first = regrow.DPF(model, optimizer, sparsity=0.9)
    regrow.DPF(model, optimizer, sparsity=0.9)
    first.detach()


MISTAKES = {
    "swapped arguments": (
        lambda _: regrow.DPF(*reversed(parts()), sparsity=0.9),
        "model and optimizer are swapped: got the module Sequential as optimizer",
    ),
    "a percentage": (lambda _: dpf(sparsity=90), r"sparsity must be in \[0, 1\), got 90\. Did you mean 0\.9\?"),
    "a text": (lambda _: dpf(sparsity="0.9"), r"sparsity must be a number in \[0, 1\) or a schedule, got '0\.9'"),
    "a fraction as end": (lambda _: regrow.Cubic(0.9, end=0.75), r"end is an optimizer step, got 0\.75"),
    "a misspelled option": (lambda _: dpf(sparsty=0.9), r"DPF has no option 'sparsty'\. Did you mean 'sparsity'\?"),
    "an option of another method": (
        lambda _: regrow.RigL(*parts(), sparsity=0.9, total_steps=9, unit="filter"),
        r"RigL has no option 'unit'\.",
    ),
    "a shortened option": (lambda _: dpf(total=9), r"DPF has no option 'total'\. Did you mean 'total_steps'\?"),
    "an unknown scope": (lambda _: dpf(scope="local"), r"scope must be one of 'global', 'layer'.*got 'local'"),
    "an unknown layer": (
        lambda _: dpf(targets="fc1"),
        r"no weight matches target 'fc1'\. The model's prunable weights",
    ),
    "an unknown excluded layer": (lambda _: dpf(exclude="9.*"), r"no weight matches exclude= '9\.\*'"),
    "parameters for a model": (
        lambda _: regrow.DPF(parts()[0].parameters(), parts()[1], sparsity=0.9),
        r"model must be a torch\.nn\.Module, got generator",
    ),
    "the optimizer of another model": (
        lambda _: regrow.DPF(parts()[0], parts()[1], sparsity=0.9),
        r"the optimizer does not hold 0\.weight",
    ),
    "a scheduler for an optimizer": (
        lambda _: regrow.DPF(parts()[0], torch.optim.lr_scheduler.StepLR(parts()[1], 3).step, sparsity=0.9),
        r"is not a torch\.optim\.Optimizer",
    ),
    "a single layer": (
        lambda _: regrow.DPF(model := nn.Linear(4, 4), torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9),
        r"the model has nothing to prune.*include_last=True",
    ),
    "a ramp that is too long": (
        lambda _: dpf(sparsity=regrow.Cubic(0.9, end=1000), total_steps=500),
        r"the sparsity of 90\.0% is not reached: .*ends at step 1000.*500 steps.*End the ramp earlier",
    ),
    "a ramp into the settled part": (
        lambda _: dpf(sparsity=regrow.Cubic(0.9, end=98), total_steps=100, settle=0.1),
        r"the sparsity of 90\.0% is not reached: .*after step 90",
    ),
    "settling without a length": (lambda _: dpf(settle=0.1), r"DPF needs total_steps=, the optimizer steps"),
    "a second pruner": (lambda _: attached_twice(), r"0\.weight is already pruned by a DPF: detach\(\) that one first"),
    "a rebuilt optimizer": (lambda _: rebuilt_optimizer(), r"a SGD steps weights that a DPF prunes with another"),
    "a replaced layer": (
        lambda _: replaced_layer(),
        r"0\.weight of the model is not the parameter that this DPF prunes",
    ),
    "an assigned state": (lambda _: assigned_state(), r"0\.weight of the model is not the parameter.*assign=True"),
    "no state of the pruner": (
        lambda _: resumed_without_the_pruner(),
        r"the optimizer's state was loaded, but not that of the DPF.*pruner\.load_state_dict",
    ),
    "training the dense weights": (lambda _: trained_while_dense(), r"inside `with pruner\.dense\(\):`"),
    "saving before the end": (saved_too_early, r"has not reached its final sparsity: DPF is at step 1.*ends at 90\.0%"),
}


def test_a_method_that_ends_dense_is_never_short_of_its_sparsity(tmp_path):
    model, optimizer = parts()
    pruner = regrow.DSD(model, optimizer, sparsity=0.5, total_steps=4)
    for _ in range(4):
        step(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regrow.save(model, tmp_path / "model.regrow")
    assert pruner.sparsity == 0


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises_an_error_that_names_it(mistake, tmp_path):
    call, message = MISTAKES[mistake]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((ValueError, TypeError, RuntimeError, UserWarning), match=message):
            call(tmp_path)


def test_the_sparsity_of_a_detached_pruner_is_counted():
    model, optimizer = parts()
    pruner = regrow.DPF(model, optimizer, sparsity=0.9)
    pruner.detach()
    assert pruner.sparsity == pytest.approx(0.9)
    step(model, optimizer)
    left = sum(int((model[i].weight != 0).sum()) for i in (0, 2))
    assert pruner.sparsity == 1 - left / 1200 < 0.9


@pytest.mark.parametrize("options", [{}, {"threshold": "soft"}, {"offload": True}])
def test_detach_can_leave_the_dense_model(options):
    model, optimizer = parts()
    pruner = regrow.DPF(model, optimizer, sparsity=0.9, **options)
    step(model, optimizer)
    with pruner.dense():
        dense = [parameter.detach().clone() for parameter in model.parameters()]
    pruner.detach(dense=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), dense, strict=True))
    assert pruner.sparsity == 0


def test_a_failed_attach_leaves_the_model_as_it_was():
    model, optimizer = parts()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match="is not reached"):
        regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=100, initial=0.5), total_steps=50)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    regrow.DPF(model, optimizer, sparsity=0.9)


def test_an_optimizer_of_other_weights_does_not_warn():
    model, optimizer = parts()
    regrow.DPF(model, optimizer, sparsity=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(*parts())
        step(model, optimizer)


def test_collapsed_layers_are_one_warning():
    model, optimizer = parts()
    with torch.no_grad():
        for index in (0, 2):
            model[index].weight.mul_(1e-6)
    with pytest.warns(UserWarning, match=r"all of 0\.weight, 2\.weight is pruned") as caught:
        regrow.DPF(model, optimizer, sparsity=0.95, include_last=True)
    assert len(caught) == 1
