"""Budgets: exact counts for the whole model, split over the layers by a rule."""

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regrow
from regrow.core.budget import Budget, keep_largest, rank_all_inside_first, rank_inside_first, split_exactly
from regrow.core.distributed import SINGLE_PROCESS
from tests.core.nets import sgd, small_cnn
from tests.methods.reference import split

layers = st.lists(st.tuples(st.floats(0, 1e6) | st.just(0.0), st.integers(0, 500)), min_size=1, max_size=8)


@given(layers=layers, fill=st.floats(0, 1))
def test_parts_are_whole_respect_the_caps_and_sum_to_the_total(layers, fill):
    weights, caps = [weight for weight, _ in layers], [cap for _, cap in layers]
    total = int(fill * sum(caps))
    parts = split_exactly(total, weights, caps)
    assert sum(parts) == total
    assert all(0 <= part <= cap for part, cap in zip(parts, caps, strict=True))
    assert parts == split(total, weights, caps)


def test_more_units_than_the_caps_allow_are_refused():
    with pytest.raises(ValueError, match="12 units do not fit into the 10 free places"):
        split_exactly(12, [1, 1], [5, 5])


@settings(max_examples=30, deadline=None)
@given(sparsity=st.floats(0, 0.99), scope=st.sampled_from(["er", "erk", "redistributed"]), seed=st.integers(0, 99))
@pytest.mark.filterwarnings("ignore:all of .* is pruned")
def test_the_number_of_survivors_is_exact_whatever_the_rule(sparsity, scope, seed):
    model = small_cnn(seed)
    pruner = regrow.DPF(model, sgd(model), sparsity=sparsity, scope=scope)
    assert pruner.masks.total - pruner.masks.kept == round(pruner.masks.total * sparsity)


@pytest.mark.parametrize("scope", ["er", "erk"])
def test_densities_follow_erdos_and_renyi(scope):
    model = small_cnn()
    pruner = regrow.DPF(model, sgd(model), sparsity=0.9, scope=scope)
    rule = {}
    for name, mask in pruner.masks.items():
        sides = mask.shape if scope == "erk" else mask.shape[:2]
        rule[name] = sum(sides) / prod(sides)
    density = {name: 1 - sparsity for name, sparsity in pruner.stats().layers.items()}
    open_ = [name for name, fraction in density.items() if fraction < 1]
    for name in open_[1:]:
        assert density[name] / density[open_[0]] == pytest.approx(rule[name] / rule[open_[0]], rel=0.05)


def test_redistribution_gives_more_to_layers_of_larger_weights():
    model = small_cnn()
    even = regrow.DPF(model, sgd(model), sparsity=0.8, scope="redistributed")
    sums = {name: weight.abs().sum().item() for name, weight in even.weights.items()}
    for name, mask in even.masks.items():
        assert int(mask.sum()) / even.masks.kept == pytest.approx(sums[name] / sum(sums.values()), abs=0.01)


def test_a_layer_that_would_be_denser_than_dense_gives_the_rest_to_the_others():
    budget = Budget("erk")
    scores = {"small": torch.rand(3, 3), "large": torch.rand(100, 100)}
    masks = dict(budget.keep_top(scores, 0.9))
    assert bool(masks["small"].all())
    assert int(masks["large"].sum()) == 10_009 - round(10_009 * 0.9) - 9


def test_scores_that_are_zero_exactly_outside_their_masks_are_ranked_without_a_copy():
    scores = {"first": torch.tensor([0.0, -1.0, 2.0]), "second": torch.tensor([3.0, 0.0])}
    masks = {name: score != 0 for name, score in scores.items()}
    assert rank_all_inside_first(scores, masks, SINGLE_PROCESS) is scores
    for name, index in (("first", 0), ("second", 0)):  # a zero that is alive, a weight that is not
        other = {each: mask.clone() for each, mask in masks.items()}
        other[name][index] = ~other[name][index]
        ranked = rank_all_inside_first(scores, other, SINGLE_PROCESS)
        assert all(torch.equal(ranked[each], rank_inside_first(scores[each], other[each])) for each in scores)


def test_the_largest_inside_a_mask_are_kept_even_if_they_are_zero():
    score, among = torch.tensor([5.0, 0.0, -1.0, 0.0, 7.0]), torch.tensor([False, True, True, True, False])
    assert keep_largest("w", score, among, 2).tolist() == [False, False, True, True, False]
    with pytest.raises(ValueError, match="w contains NaN"):
        keep_largest("w", torch.tensor([1.0, float("nan")]), torch.tensor([True, True]), 1)
