"""Soft filter pruning: zeroed each epoch per layer, free in between."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regrow
from tests.core.nets import batches, sgd, small_cnn, train
from tests.methods.networks import Training, steps, trainings

TRAINING = Training(convs=(5, 6), hidden=(7,), momentum=0.9, decay=0.001, seed=3)


@settings(max_examples=15, deadline=None)
@given(training=trainings(), ratio=st.floats(0, 0.9), every=st.integers(1, 3))
def test_training_equals_zeroing_the_weakest_filters_by_hand(training, ratio, every):
    model, plain = training.model(), training.model()
    optimizer, other = training.optimizer(model), training.optimizer(plain)
    pruner = regrow.SFP(model, optimizer, sparsity=ratio, every=every)
    names = list(pruner.masks)
    zero_weakest(plain, names, ratio)
    for t, _ in zip(steps(model, optimizer, 6), steps(plain, other, 6), strict=True):
        if t % every == 0:
            zero_weakest(plain, names, ratio)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


@torch.no_grad()
def zero_weakest(model, names, ratio):
    for name in names:
        weight = model.get_parameter(name)
        norms = weight.flatten(1).norm(dim=1)
        weight[norms.sort(stable=True).indices[: int(len(norms) * ratio + 1e-9)]] = 0


def test_filters_grow_back_between_the_masks_and_the_model_is_sparse_when_one_was_just_made():
    model = TRAINING.model()
    optimizer = TRAINING.optimizer(model)
    pruner = regrow.SFP(model, optimizer, sparsity=regrow.Cubic(0.5, end=6), every=3)
    zero = []
    for t in steps(model, optimizer, 9):
        zero.append(sum(not bool(row.any()) for p in model.parameters() if p.ndim > 1 for row in p.flatten(1)))
        assert pruner.stats().requested == regrow.Cubic(0.5, end=6)(t // 3 * 3)
    pruned = {t: sum(int(width * regrow.Cubic(0.5, end=6)(t) + 1e-9) for width in (5, 6, 7)) for t in (3, 6, 9)}
    assert (zero[2], zero[5], zero[8]) == (pruned[3], pruned[6], pruned[9])
    assert zero[3] < zero[2]
    assert zero[6] < zero[5]


def test_a_frozen_model_is_pruned_at_once():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.SFP(model, optimizer, sparsity=0.5, every=4)
    train(model, optimizer, batches(6))  # two steps after the last zeroing
    weights = dict(model.named_parameters())
    assert any(weights[name][~mask].any() for name, mask in pruner.masks.items())
    pruner.freeze()
    assert not any(weights[name][~mask].any() for name, mask in pruner.masks.items())


def test_weights_that_grew_since_the_last_mask_are_counted_and_removed_by_detach():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.SFP(model, optimizer, sparsity=0.5, every=4)
    train(model, optimizer, batches(4))
    assert pruner.sparsity == pruner.masks.sparsity
    train(model, optimizer, batches(2))
    weights = dict(model.named_parameters())
    zeros = {name: (weights[name] == 0).double().mean().item() for name in pruner.masks}
    assert pruner.stats().layers == pytest.approx(zeros)
    assert pruner.sparsity < pruner.masks.sparsity
    pruner.detach()
    assert not any(weights[name][~mask].any() for name, mask in pruner.masks.items())
    assert pruner.sparsity == pruner.masks.sparsity
