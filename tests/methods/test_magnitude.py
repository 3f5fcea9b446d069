"""Incremental, OneShot and Dense: when they prune, what they never do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from tests.core.reference import stable_masks
from tests.methods.networks import Training, steps, trainings

PLAIN = Training(convs=(4, 5), hidden=(6,), momentum=0.9, decay=0.01, seed=0)
scopes = st.sampled_from(["global", "layer"])
pytestmark = pytest.mark.filterwarnings("ignore:all of .* is pruned")


@settings(max_examples=30, deadline=None)
@given(training=trainings(), final=st.floats(0, 0.99), every=st.integers(1, 4), scope=scopes)
def test_incremental_prunes_exactly_to_the_ramp_and_never_regrows_a_weight(training, final, every, scope):
    model = training.model()
    optimizer = training.optimizer(model)
    ramp = regrow.Cubic(final, end=8)
    pruner = regrow.Incremental(model, optimizer, sparsity=ramp, every=every, scope=scope)
    before = pruner.masks.clone()
    for t in steps(model, optimizer, 10):
        pools = [pruner.masks] if scope == "global" else [regrow.Masks({n: m}) for n, m in pruner.masks.items()]
        asked = ramp(t // every * every)
        assert all(pool.total - pool.kept == round(pool.total * asked) for pool in pools)
        assert not any(bool((mask & ~before[name]).any()) for name, mask in pruner.masks.items())
        assert not any(weight[~pruner.masks[name]].any() for name, weight in pruner.weights.items())
        before = pruner.masks.clone()


@settings(max_examples=30, deadline=None)
@given(
    training=trainings(),
    final=st.floats(0.1, 0.9),
    scope=st.sampled_from(["er", "erk", "redistributed"]),
    unit=st.sampled_from(["weight", "filter"]),
)
def test_incremental_never_regrows_a_weight_with_any_scope(training, final, scope, unit):
    model = training.model()
    optimizer = training.optimizer(model)
    pruner = regrow.Incremental(model, optimizer, sparsity=regrow.Cubic(final, end=20), every=1, scope=scope, unit=unit)
    before = pruner.masks.clone()
    for _ in steps(model, optimizer, 22):
        assert not any(bool((mask & ~before[name]).any()) for name, mask in pruner.masks.items())
        before = pruner.masks.clone()
    if unit == "weight":
        assert before.total - before.kept == round(before.total * final)


def test_incremental_never_revives_a_pruned_weight_for_one_that_happens_to_be_zero():
    layer = nn.Linear(6, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 2.0, 1.0, 4.0, 5.0, 6.0]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    sparsity = lambda t: (1 + t) / 6  # noqa: E731
    pruner = regrow.Incremental(layer, optimizer, sparsity=sparsity, every=1, include_last=True)
    assert pruner.masks["weight"].tolist() == [[True, True, False, True, True, True]]
    layer.weight.grad = torch.tensor([[3.0, 2.0, -9.0, 4.0, 5.0, 0.0]])  # all but one become zero
    optimizer.step()
    assert pruner.masks["weight"].tolist() == [[False, True, False, True, True, True]]


def test_incremental_selects_by_the_magnitude_of_the_remaining_weights():
    model = PLAIN.model()
    optimizer = PLAIN.optimizer(model)
    updated = {}
    optimizer.register_step_post_hook(  # runs before the pruner's own hook
        lambda *_: updated.update({name: p.detach().clone() for name, p in model.named_parameters()})
    )
    pruner = regrow.Incremental(model, optimizer, sparsity=regrow.Cubic(0.8, end=6), every=2)
    before = pruner.masks.clone()
    for t in steps(model, optimizer, 8):
        if t % 2 == 0:
            left = [torch.where(mask, updated[name], 0.0) for name, mask in before.items()]
            expected = stable_masks(left, round(before.total * pruner.schedule(t)))
            assert all(torch.equal(a, b) for a, b in zip(expected, pruner.masks.values(), strict=True))
        before = pruner.masks.clone()


@settings(max_examples=20, deadline=None)
@given(training=trainings(), sparsity=st.floats(0, 0.99), at=st.integers(0, 4), scope=scopes)
def test_one_shot_prunes_once_and_keeps_that_mask(training, sparsity, at, scope):
    model = training.model()
    optimizer = training.optimizer(model)
    pruner = regrow.OneShot(model, optimizer, sparsity=sparsity, at=at, scope=scope)
    masks = pruner.masks.clone()
    for t in steps(model, optimizer, 6):
        if t < at:
            assert pruner.sparsity == 0
        elif t == at:
            masks = pruner.masks.clone()
        assert t < at or all(torch.equal(mask, masks[name]) for name, mask in pruner.masks.items())
        assert not any(weight[~pruner.masks[name]].any() for name, weight in pruner.weights.items())
    if scope == "global":
        assert masks.total - masks.kept == round(masks.total * sparsity)


def test_one_shot_takes_the_smallest_weights_of_the_trained_model():
    model = PLAIN.model()
    optimizer = PLAIN.optimizer(model)
    list(steps(model, optimizer, 5))
    trained = {name: p.detach().clone() for name, p in model.named_parameters()}
    pruner = regrow.OneShot(model, PLAIN.optimizer(model), sparsity=0.75)
    expected = stable_masks([trained[name] for name in pruner.masks], round(0.75 * pruner.masks.total))
    assert all(torch.equal(a, b) for a, b in zip(expected, pruner.masks.values(), strict=True))


def test_dense_leaves_training_as_it_was():
    plain, watched = PLAIN.model(), PLAIN.model()
    optimizer = PLAIN.optimizer(watched)
    pruner = regrow.Dense(watched, optimizer)
    list(steps(plain, PLAIN.optimizer(plain), 5))
    list(steps(watched, optimizer, 5))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert (pruner.sparsity, pruner.stats().delta, pruner.step) == (0.0, 0.0, 5)


def test_wrong_arguments_raise_errors():
    model = PLAIN.model()
    with pytest.raises(ValueError, match="at must be a whole number of optimizer steps, at least 0, got -1"):
        regrow.OneShot(model, PLAIN.optimizer(model), sparsity=0.5, at=-1)


def test_a_one_shot_pruner_resumes_only_with_the_same_step_of_pruning():
    model = PLAIN.model()
    state = regrow.OneShot(model, PLAIN.optimizer(model), sparsity=0.5, at=3).state_dict()
    other = regrow.OneShot(model, PLAIN.optimizer(model), sparsity=0.5, at=4)
    with pytest.raises(ValueError, match="saved with at=3, this pruner has at=4"):
        other.load_state_dict(state)
