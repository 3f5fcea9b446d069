"""SNIP's score is the gradient with respect to the mask, and its mask is made once."""

import copy
import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

import regrow
from tests.core.nets import step
from tests.core.reference import stable_masks
from tests.methods.networks import Training, steps, trainings

TRAINING = Training(convs=(5, 6), hidden=(7,), momentum=0.9, decay=0.001, seed=3)


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 2, 4, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def sensitivities(model: nn.Module, names: list[str], seed: int = 0) -> list[torch.Tensor]:
    """Differentiate the loss with respect to explicit mask variables, at m = 1."""
    model = copy.deepcopy(model)
    parameters = dict(model.named_parameters())
    masks = {name: torch.ones_like(parameters[name], requires_grad=True) for name in names}
    masked = {name: p.detach() * masks[name] if name in masks else p.detach() for name, p in parameters.items()}
    x, y = batch(seed)
    loss = nn.functional.cross_entropy(functional_call(model, masked, (x,)), y)
    return list(torch.autograd.grad(loss, list(masks.values())))


@settings(max_examples=20, deadline=None)
@given(training=trainings(), sparsity=st.floats(0, 0.95), given_loss=st.booleans())
@pytest.mark.filterwarnings("ignore:all of .* is pruned")
def test_the_mask_keeps_the_largest_gradients_with_respect_to_the_mask(training, sparsity, given_loss):
    model = training.model()
    optimizer = training.optimizer(model)
    names = [name for name, p in model.named_parameters() if p.ndim > 1][:-1]
    scores = sensitivities(model, names)
    x, y = batch()
    loss = lambda: nn.functional.cross_entropy(model(x), y)  # noqa: E731
    pruner = regrow.SNIP(model, optimizer, sparsity=sparsity, loss=loss if given_loss else None)
    if not given_loss:
        assert pruner.sparsity == 0
        list(steps(model, optimizer, 1))  # whose batch is `batch(0)`
    expected = stable_masks(scores, round(sparsity * pruner.masks.total))
    assert list(pruner.masks) == names
    assert all(torch.equal(a, b) for a, b in zip(expected, pruner.masks.values(), strict=True))
    before = pruner.masks.clone()
    list(steps(model, optimizer, 3, start=1))
    assert all(torch.equal(mask, before[name]) for name, mask in pruner.masks.items())
    assert not any(weight[~before[name]].any() for name, weight in pruner.weights.items())


def test_scoring_leaves_gradients_statistics_and_modes_as_they_were():
    model = TRAINING.model()
    state = copy.deepcopy(model.state_dict())
    x, y = batch()
    regrow.SNIP(
        model,
        TRAINING.optimizer(model),
        sparsity=0.0,
        loss=lambda: nn.functional.cross_entropy(model(x), y),
        inference=True,
    )
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert all(module.training for module in model.modules())


def test_the_authors_score_in_inference_mode_and_train_another_initialization():
    model, other = TRAINING.model(), Training(**{**TRAINING.__dict__, "seed": 4}).model()
    x, y = batch()
    pruner = regrow.SNIP(
        model,
        TRAINING.optimizer(model),
        sparsity=0.7,
        loss=lambda: nn.functional.cross_entropy(model(x), y),
        inference=True,
    )
    names = list(pruner.masks)
    expected = stable_masks(sensitivities(TRAINING.model().eval(), names), round(0.7 * pruner.masks.total))
    assert all(torch.equal(a, b) for a, b in zip(expected, pruner.masks.values(), strict=True))
    fixed = regrow.Fixed(other, TRAINING.optimizer(other), pruner.masks)
    assert fixed.masks.kept == pruner.masks.kept


def test_the_last_layer_stays_dense_as_in_the_comparison_unless_it_is_included_as_at_the_authors():
    for include_last in (False, True):
        model = TRAINING.model()
        pruner = regrow.SNIP(model, TRAINING.optimizer(model), sparsity=0.5, include_last=include_last)
        [*_, last] = [name for name, parameter in model.named_parameters() if parameter.ndim > 1]
        assert (last in pruner.targets) == include_last


def test_inference_mode_without_a_loss_is_refused():
    model = TRAINING.model()
    with pytest.raises(ValueError, match="inference=True needs loss="):
        regrow.SNIP(model, TRAINING.optimizer(model), sparsity=0.9, inference=True)


def test_filters_are_scored_by_the_sum_over_their_weights():
    model = TRAINING.model()
    x, y = batch()
    loss = lambda: nn.functional.cross_entropy(model(x), y)  # noqa: E731
    names = [name for name, p in model.named_parameters() if p.ndim > 1][:-1]
    sums = [score.abs().flatten(1).sum(1) for score in sensitivities(model, names)]
    pruner = regrow.SNIP(model, TRAINING.optimizer(model), sparsity=0.5, loss=loss, unit="filter")
    expected = stable_masks(sums, round(0.5 * sum(map(len, sums))))
    for keep, mask in zip(expected, pruner.masks.values(), strict=True):
        assert torch.equal(mask.flatten(1), keep[:, None].expand_as(mask.flatten(1)))


def test_help_shows_the_criterion_that_is_used():
    assert inspect.signature(regrow.SNIP).parameters["criterion"].default == "l1"
    assert inspect.signature(regrow.OneShot).parameters["criterion"].default == "l2"


@pytest.mark.parametrize("closure", [False, True])
def test_the_first_step_is_the_same_wherever_weight_decay_is_taken(closure):
    ends = []
    for decay in ("dense", "pruned"):
        model = TRAINING.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
        pruner = regrow.SNIP(model, optimizer, sparsity=0.5, weight_decay_at=decay)
        names = list(pruner.masks)
        expected = stable_masks(sensitivities(model, names), round(0.5 * pruner.masks.total))
        step(model, optimizer, batch(), closure=closure)
        assert all(torch.equal(a, b) for a, b in zip(expected, pruner.masks.values(), strict=True))
        assert optimizer.param_groups[0]["weight_decay"] == 0.5
        ends.append(list(model.parameters()))
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*ends, strict=True))


def test_a_state_from_before_the_first_step_is_not_scored_again():
    model, other = TRAINING.model(), TRAINING.model()
    x, y = batch()
    pruner = regrow.SNIP(
        model, TRAINING.optimizer(model), sparsity=0.8, loss=lambda: nn.functional.cross_entropy(model(x), y)
    )
    optimizer = TRAINING.optimizer(other)
    resumed = regrow.SNIP(other, optimizer, sparsity=0.8)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(pruner.state_dict())
    list(steps(other, optimizer, 1, start=0))
    assert all(torch.equal(mask, pruner.masks[name]) for name, mask in resumed.masks.items())


def test_a_frozen_target_has_no_gradient_and_is_pruned_first():
    model = TRAINING.model()
    model[0].weight.requires_grad_(False)
    x, y = batch()
    loss = lambda: nn.functional.cross_entropy(model(x), y)  # noqa: E731
    with pytest.warns(UserWarning, match=r"all of 0\.weight is pruned"):
        pruner = regrow.SNIP(model, TRAINING.optimizer(model), sparsity=0.8, loss=loss, targets=["0", "3", "7"])
    assert pruner.stats().layers["0.weight"] == 1
