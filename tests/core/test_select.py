"""Selection equals a stable sort, in every case."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core import select
from regrow.core.budget import Budget
from regrow.core.distributed import ShardGroup
from regrow.core.select import NotANumberError, cut, find_threshold
from tests.core.reference import stable_masks

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
AWKWARD = [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 5e-324, 6e-8, float("inf"), float("-inf"), 0.5, -0.5, 65504.0]


def prune_smallest(scores, count):
    """Return one mask per tensor, False for the `count` elements of least magnitude over all of them."""
    return cut(scores, find_threshold({f"tensor {index}": score for index, score in enumerate(scores)}, count))


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
@given(weights=weight_lists(), fraction=st.floats(0, 1))
def test_the_masks_are_those_of_a_stable_sort(weights, fraction):
    count = round(fraction * sum(w.numel() for w in weights))
    expected = stable_masks(weights, count)
    plain = {"_bracket": lambda *_: None}
    for replaced in ({}, plain, plain | {"uses_numpy": lambda _: False}):  # bracketed, radix, as on other devices
        with pytest.MonkeyPatch.context() as patch:
            for name, function in replaced.items():
                patch.setattr(select, name, function)
            found = list(prune_smallest(weights, count))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert sum(int((~mask).sum()) for mask in found) == count


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.9, 0.999])
def test_large_tensors_go_through_the_bracket_and_stay_exact(dtype, fraction):
    torch.manual_seed(0)
    weights = [torch.randn(300_000).to(dtype), torch.randn(40, 50, 30).to(dtype) * 0.1, torch.zeros(7, dtype=dtype)]
    count = round(fraction * sum(w.numel() for w in weights))
    found = list(prune_smallest(weights, count))
    assert all(torch.equal(a, b) for a, b in zip(found, stable_masks(weights, count), strict=True))


def test_a_misleading_sample_costs_time_but_the_selection_stays_exact():
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


@settings(max_examples=50, deadline=None)
@given(weights=weight_lists(), fraction=st.floats(0, 1), data=st.data())
def test_scores_with_any_strides_are_read_correctly(weights, fraction, data):
    strided = []
    for weight in weights:
        wide = torch.full((*weight.shape, 2), torch.nan, dtype=weight.dtype)
        wide[..., 0] = weight
        expanded = weight[:1].expand_as(weight)
        strided.append(
            data.draw(
                st.sampled_from(
                    [wide[..., 0], expanded, weight.flip(0), weight.mT.contiguous().mT]
                    if weight.ndim > 1
                    else [wide[..., 0], expanded]
                )
            )
        )
    count = round(fraction * sum(w.numel() for w in weights))
    found = prune_smallest(strided, count)
    assert all(torch.equal(a, b) for a, b in zip(found, stable_masks(strided, count), strict=True))


def test_mixed_precisions_are_compared_by_value():
    weights = [torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0], dtype=torch.bfloat16)]
    assert [mask.tolist() for mask in prune_smallest(weights, 2)] == [[False, True], [False, True]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bracket", [select._bracket, lambda *_: None])
def test_nan_is_an_error_that_names_the_tensor(dtype, bracket, monkeypatch):
    monkeypatch.setattr(select, "_bracket", bracket)
    weights = [torch.ones(5, dtype=dtype), torch.tensor([1.0, float("nan")], dtype=dtype)]
    with pytest.raises(NotANumberError, match="tensor 1 contains NaN"):
        list(prune_smallest(weights, 3))
    with pytest.raises(ValueError, match="fc2 contains NaN"):
        list(Budget().keep_top({"fc1": weights[0], "fc2": weights[1]}, 0.5))


class Ranks:
    """Two threads in place of processes, which tell each other what they hold."""

    def __init__(self):
        self.barrier, self.given = threading.Barrier(2), [None, None]

    def exchange(self, rank, tensor):
        self.given[rank] = tensor
        self.barrier.wait(10)
        both = list(self.given)
        self.barrier.wait(10)
        return both

    def select(self, rank, parts, count):
        shards = Rank(self, rank)
        threshold = select.find_threshold({str(index): part for index, part in enumerate(parts)}, count, shards)
        return list(select.cut(parts, threshold, shards))

    def run(self, shards, count):
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(self.select, rank, shards[rank], count) for rank in range(2)]
            return futures


class Rank(ShardGroup):
    """One of two: `sum` adds up what both give, `sum_before` knows the order of their rows."""

    sharded = True

    def __init__(self, ranks, rank):
        self.ranks, self.rank = ranks, rank

    def sum(self, numbers):
        return sum(self.ranks.exchange(self.rank, numbers))

    def sum_before(self, numbers):
        first, second = self.ranks.exchange(self.rank, numbers)
        whole = (first + second).cumsum(0) - first - second
        return whole if self.rank == 0 else whole + first


@settings(max_examples=50, deadline=None)
@given(weights=weight_lists(), fraction=st.floats(0, 1))
def test_shards_select_the_same_as_the_whole_tensor(weights, fraction):
    count = round(fraction * sum(w.numel() for w in weights))
    halves = [torch.tensor_split(w, [len(w) // 2]) for w in weights]
    futures = Ranks().run([[half[rank] for half in halves] for rank in range(2)], count)
    parts = zip(*(future.result() for future in futures), strict=True)
    assert all(torch.equal(torch.cat(a), b) for a, b in zip(parts, stable_masks(weights, count), strict=True))


def test_nan_in_one_shard_stops_all_of_them():
    futures = Ranks().run([[torch.ones(3)], [torch.tensor([1.0, torch.nan])]], 2)
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [NotANumberError] * 2
    assert [str(error).split(" contains NaN")[0] for error in errors] == ["a shard of another process", "0"]


@settings(max_examples=100, deadline=None)
@given(weights=weight_lists(), sparsity=st.floats(0, 0.99), floor=st.integers(0, 3))
def test_exactly_the_requested_number_is_pruned_with_a_floor_too(weights, sparsity, floor):
    scores = {f"layer{i}": w for i, w in enumerate(weights)}
    total = sum(w.numel() for w in weights)
    spared = sum(min(floor, w.numel()) for w in weights)
    budget = Budget("global", floor)
    if round(total * sparsity) > total - spared:
        with pytest.raises(ValueError, match="lower the floor or the sparsity"):
            list(budget.keep_top(scores, sparsity))
        return
    masks = dict(budget.keep_top(scores, sparsity))
    assert sum(int((~mask).sum()) for mask in masks.values()) == round(total * sparsity)
    assert all(int(mask.sum()) >= min(floor, mask.numel()) for mask in masks.values())


@settings(max_examples=100, deadline=None)
@given(weights=weight_lists(), sparsity=st.floats(0, 0.99))
def test_layer_scope_prunes_the_same_fraction_of_every_layer(weights, sparsity):
    masks = dict(Budget("layer").keep_top({str(i): w for i, w in enumerate(weights)}, sparsity))
    for i, w in enumerate(weights):
        assert torch.equal(masks[str(i)], stable_masks([w], round(w.numel() * sparsity))[0])
