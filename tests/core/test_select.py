"""Selection equals a stable sort, in every case."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.choices.budget import Allotment
from regrow.core import select
from regrow.core.budget import Budget
from regrow.core.select import NotANumberError, prune_smallest
from tests.core.reference import stable_masks

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
AWKWARD = [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 5e-324, 6e-8, float("inf"), float("-inf"), 0.5, -0.5, 65504.0]


@st.composite
def weight_lists(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shapes = draw(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4))
    few = draw(st.booleans())  # few different values make many ties
    value = st.sampled_from(AWKWARD) if few else st.floats(allow_nan=False, width=32)
    tensors = []
    for shape in shapes:
        size = int(np.prod(shape))
        values = draw(st.lists(value, min_size=size, max_size=size))
        tensor = torch.tensor(values, dtype=torch.float64).to(dtype).view(shape)
        if tensor.ndim == 4 and draw(st.booleans()):
            tensor = tensor.to(memory_format=torch.channels_last)
        tensors.append(tensor)
    return tensors


@settings(max_examples=300, deadline=None)
@given(weights=weight_lists(), share=st.floats(0, 1))
def test_the_masks_are_those_of_a_stable_sort(weights, share):
    count = round(share * sum(w.numel() for w in weights))
    expected = stable_masks(weights, count)
    for bracket in (select._bracket, lambda *_: None):  # the bracketed pass and plain radix selection
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(select, "_bracket", bracket)
            found = list(prune_smallest(weights, count))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert sum(int((~mask).sum()) for mask in found) == count


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.001, 0.5, 0.9, 0.999])
def test_large_tensors_go_through_the_bracket_and_stay_exact(dtype, share):
    torch.manual_seed(0)
    weights = [torch.randn(300_000).to(dtype), torch.randn(40, 50, 30).to(dtype) * 0.1, torch.zeros(7, dtype=dtype)]
    count = round(share * sum(w.numel() for w in weights))
    found = list(prune_smallest(weights, count))
    assert all(torch.equal(a, b) for a, b in zip(found, stable_masks(weights, count), strict=True))


def test_a_sample_that_misleads_costs_time_and_never_exactness():
    weights = torch.zeros(1 << 20)
    weights[1::2] = torch.arange(1 << 19)  # every even element, and so the whole sample, is zero
    count = (1 << 20) * 3 // 4
    [found] = prune_smallest([weights], count)
    assert torch.equal(found, stable_masks([weights], count)[0])


def test_weights_that_are_all_equal_are_pruned_from_the_first_index_on():
    first, second = prune_smallest([torch.ones(200_000), -torch.ones(100_000)], 250_000)
    assert not first.any()
    assert not second[:50_000].any()
    assert second[50_000:].all()


def test_ties_follow_the_logical_order_whatever_the_memory_format():
    weight = torch.ones(2, 3, 4, 5)
    [plain] = prune_smallest([weight], 50)
    [channels_last] = prune_smallest([weight.to(memory_format=torch.channels_last)], 50)
    assert torch.equal(plain, channels_last)


def test_mixed_precisions_are_compared_by_value():
    weights = [torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0], dtype=torch.bfloat16)]
    assert [mask.tolist() for mask in prune_smallest(weights, 2)] == [[False, True], [False, True]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bracket", [select._bracket, lambda *_: None])
def test_nan_is_an_error_that_names_the_tensor(dtype, bracket, monkeypatch):
    monkeypatch.setattr(select, "_bracket", bracket)
    weights = [torch.ones(5, dtype=dtype), torch.tensor([1.0, float("nan")], dtype=dtype)]
    with pytest.raises(NotANumberError) as caught:
        list(prune_smallest(weights, 3))
    assert caught.value.index == 1
    with pytest.raises(ValueError, match="fc2 holds NaN"):
        list(Budget().keep_top({"fc1": weights[0], "fc2": weights[1]}, 0.5))


def test_histograms_of_shards_add_up_to_the_selection_of_the_whole():
    whole = torch.randn(10_000, generator=torch.Generator().manual_seed(3))
    shards = whole.split(3_000)
    reached = select.find_threshold([whole], 9_000)
    assert select.find_threshold(shards, 9_000, reduce=lambda histogram: histogram) == reached


@settings(max_examples=100, deadline=None)
@given(weights=weight_lists(), sparsity=st.floats(0, 0.99), floor=st.integers(0, 3))
def test_exactly_the_requested_number_is_pruned_with_a_floor_too(weights, sparsity, floor):
    scores = {f"layer{i}": w for i, w in enumerate(weights)}
    total = sum(w.numel() for w in weights)
    spared = sum(min(floor, w.numel()) for w in weights)
    budget = Allotment("global", floor)
    if round(total * sparsity) > total - spared:
        with pytest.raises(ValueError, match="lower the floor or the sparsity"):
            list(budget.keep_top(scores, sparsity))
        return
    masks = dict(budget.keep_top(scores, sparsity))
    assert sum(int((~mask).sum()) for mask in masks.values()) == round(total * sparsity)
    assert all(int(mask.sum()) >= min(floor, mask.numel()) for mask in masks.values())


@settings(max_examples=100, deadline=None)
@given(weights=weight_lists(), sparsity=st.floats(0, 0.99))
def test_layer_scope_prunes_every_layer_to_the_same_share(weights, sparsity):
    masks = dict(Budget("layer").keep_top({str(i): w for i, w in enumerate(weights)}, sparsity))
    for i, w in enumerate(weights):
        assert torch.equal(masks[str(i)], stable_masks([w], round(w.numel() * sparsity))[0])
