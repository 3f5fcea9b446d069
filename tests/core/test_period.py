"""`every="auto"` scales a method's period to the length of a training."""

import pytest
import torch
from torch import nn

import regrow
from regrow.core.options import EPOCH
from regrow.core.schedule import SHORTEST_RAMP, scaled_period
from regrow.methods.registry import find_method
from regrow.train.build import make_pruner
from reproduce.scales import find_scale, published_recipe


def _parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 20)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("end", [1, 2_932, 2_933, 23_460, 46_919, 46_920, 10**9])
@pytest.mark.parametrize("period", [16, 100, 391])
def test_the_period_is_scaled_by_the_length_of_the_ramp_relative_to_the_papers_shortest(period, end):
    from fractions import Fraction

    fraction = min(Fraction(1), Fraction(end, 46_920))
    assert scaled_period(period, ramp_end=end) == max(1, int(fraction * period))


def test_without_a_ramp_the_period_is_scaled_by_three_quarters_of_the_training():
    assert scaled_period(16, ramp_end=None, total_steps=40_000) == scaled_period(16, ramp_end=30_000) == 10


@pytest.mark.parametrize("network", ["resnet20", "resnet32", "resnet56", "wrn28-2", "wrn28-4", "wrn28-8", "vgg16"])
def test_every_training_of_the_paper_keeps_its_16_steps(network):
    recipe = published_recipe(network)
    end = round(recipe.ramp_fraction * recipe.epochs * 391)
    assert end >= SHORTEST_RAMP
    assert scaled_period(16, ramp_end=end) == 16


def test_imagenet_in_the_paper_keeps_its_16_steps():
    recipe = published_recipe("resnet50")
    assert scaled_period(16, ramp_end=round(recipe.ramp_fraction * recipe.epochs * 1_251)) == 16


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        (regrow.DPF, {"sparsity": regrow.Cubic(0.9, end=23_460)}, 8),
        (regrow.DPF, {"sparsity": 0.9}, 16),  # the length is unknown
        (regrow.SFP, {"sparsity": 0.4}, EPOCH),
        (regrow.DPF, {"sparsity": 0.9, "total_steps": 31_280}, 8),
        (regrow.Incremental, {"sparsity": regrow.Cubic(0.9, end=23_460)}, EPOCH // 2),
        (regrow.RigL, {"sparsity": 0.9, "total_steps": 31_280}, 50),
        (regrow.DSR, {"sparsity": 0.9, "total_steps": 31_280}, 50),
        (regrow.SET, {"sparsity": 0.9, "total_steps": 31_280}, EPOCH // 2),
        (regrow.GraNet, {"sparsity": 0.9, "total_steps": 46_920}, 500),  # its own ramp ends after half of them
        (regrow.GraNet, {"sparsity": 0.9, "total_steps": 46_920, "ramp_end": 0.3}, 300),
        (regrow.SparseMomentum, {"sparsity": 0.9, "total_steps": 31_280}, EPOCH),  # a scaled one empties layers
    ],
)
def test_the_default_scales_the_period_of_every_periodic_method(method, options, expected):
    pruner = method(*_parts(), **options)
    assert pruner.every == expected
    assert f"every={expected}>" in repr(pruner)


@pytest.mark.parametrize(
    ("method", "period"),
    [("dpf", 16), ("dns", 1), ("rigl", 100), ("dsr", 100), ("granet", 1000)]
    + [(method, 21) for method in ("incremental", "set", "sparse-momentum", "sfp")],
)
def test_a_recipe_can_ask_for_the_period_of_the_methods_paper(method, period):
    from regrow.runs.recipe import Recipe
    from regrow.train.build import make_model, make_optimizer

    recipe = Recipe(method=method, every="paper", data="digits", width=4, epochs=200)
    model = make_model(recipe)
    assert make_pruner(recipe, model, make_optimizer(recipe, model, kind="sgd", lr=0.1), 21).every == period


def test_a_saved_period_wins_over_the_one_that_auto_would_choose():
    model, optimizer = _parts()
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.5, end=23_460), every=5)
    for _ in range(6):
        _step(model, optimizer)
    again, other = _parts()
    resumed = regrow.DPF(again, other, sparsity=regrow.Cubic(0.5, end=23_460), every="auto")
    assert resumed.every == 8
    again.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(pruner.state_dict())
    assert (resumed.every, resumed.updates) == (5, 2)

    fixed = regrow.DPF(*_parts(), sparsity=regrow.Cubic(0.5, end=23_460), every=8)
    with pytest.raises(ValueError, match="every=5, this pruner has every=8"):
        fixed.load_state_dict(pruner.state_dict())


@pytest.mark.parametrize("total", [460, 4_600, 46_920])
@pytest.mark.parametrize("method", ["rigl", "dsr", "granet"])
def test_a_recipe_and_the_library_choose_the_same_period(method, total):
    from regrow.runs.recipe import Recipe
    from regrow.train.build import make_model, make_optimizer

    recipe = Recipe(method=method, data="digits", width=4, epochs=total // 20)
    model = make_model(recipe)
    mine = make_pruner(recipe, model, make_optimizer(recipe, model, kind="sgd", lr=0.1), 20)
    assert mine.every == find_method(method)(*_parts(), sparsity=0.9, total_steps=total).every


def test_a_recipe_does_not_scale_the_period_of_a_method_that_keeps_it():
    from regrow.runs.recipe import Recipe
    from regrow.train.build import make_model, make_optimizer

    recipe = Recipe(method="sparse-momentum", data="digits", width=4, epochs=20)
    model = make_model(recipe)
    assert recipe.every == "auto"
    assert make_pruner(recipe, model, make_optimizer(recipe, model, kind="sgd", lr=0.1), 21).every == 21


def test_a_recipe_resumes_with_the_period_it_was_started_with():
    from regrow.runs.recipe import Recipe
    from regrow.train.build import make_model, make_optimizer

    def made(**fields):
        recipe = Recipe(data="digits", width=4, epochs=20, **fields)
        model = make_model(recipe)
        return model, make_pruner(recipe, model, make_optimizer(recipe, model, kind="sgd", lr=0.1), 21)

    (before, first), (after, resumed) = made(every=5), made(every="auto")
    state = first.state_dict()
    after.load_state_dict(before.state_dict())
    resumed.load_state_dict(state)
    assert resumed.every == 5
    with pytest.raises(ValueError, match="every=5, this pruner has every=7"):
        made(every=7)[1].load_state_dict(state)


def test_the_ramp_end_of_a_recipe_is_that_of_a_method_with_its_own_ramp():
    from regrow.runs.recipe import Recipe
    from regrow.train.build import make_model, make_optimizer

    recipe = Recipe(method="granet", data="digits", width=4, epochs=20, ramp_end=0.3)
    model = make_model(recipe)
    pruner = make_pruner(recipe, model, make_optimizer(recipe, model, kind="sgd", lr=0.1), 21)
    assert pruner.schedule.end == round(0.3 * 20 * 21)


def test_recipes_settle_by_a_field():
    from regrow.runs.recipe import Recipe
    from regrow.train.build import make_model, make_optimizer

    recipe = Recipe(data="digits", width=4, epochs=20, settle=0.1, stabilize=True)
    model = make_model(recipe)
    pruner = make_pruner(recipe, model, make_optimizer(recipe, model, kind="sgd", lr=0.1), 21)
    assert (pruner.settle, pruner.stabilize, pruner.total_steps) == (0.1, True, 420)


@pytest.mark.parametrize("every", ["often", 0, 1.5])
def test_a_period_is_a_number_of_steps_or_auto(every):
    with pytest.raises((TypeError, ValueError), match="every must be"):
        regrow.DPF(*_parts(), sparsity=0.9, every=every)


@pytest.mark.parametrize("name", ["cpu", "small", "digits", "smoke"])
@pytest.mark.parametrize("method", ["dpf", "incremental", "set", "sparse-momentum", "rigl", "dsr", "granet", "sfp"])
def test_short_scales_scale_the_periods_of_all_methods(name, method):
    from regrow.train.build import make_model, make_optimizer

    recipe = find_scale(name).stand_in.changed(method=method, data="digits", width=4)
    model = make_model(recipe)
    optimizer = make_optimizer(recipe, model, kind="sgd", lr=0.1)
    steps = {"cpu": 391, "small": 391, "digits": 21, "smoke": 16}[name]
    every = make_pruner(recipe, model, optimizer, steps).every
    own = {"dpf": 16, "rigl": 100, "dsr": 100, "granet": 1000}.get(method, steps)
    quarters = 2 if method == "granet" else 3  # after which its ramp ends
    expected = max(1, own * recipe.epochs * quarters * steps // 4 // SHORTEST_RAMP)
    if method == "sparse-momentum":
        expected = steps
    assert every == expected or (method == "sfp" and steps % every == 0 and every <= expected)
    if method == "dpf":
        assert every == 1
