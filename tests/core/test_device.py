"""The path that accelerators take has the results of the CPU's, with few launches and host syncs."""

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regrow
from benchmarks.device import measure
from benchmarks.runner import RESULTS
from regrow.core import device_select
from regrow.core.bits import device_path
from regrow.core.budget import Budget, prune_groups
from regrow.core.select import NotANumberError
from regrow.models import build
from tests.core.nets import batches, sgd, small_cnn, train
from tests.core.reference import stable_masks
from tests.core.test_select import DTYPES, Ranks, weight_lists


@settings(max_examples=200, deadline=None)
@given(weights=weight_lists(), fraction=st.floats(0, 1), least=st.sampled_from([3, 1 << 20]))
def test_one_group_is_pruned_as_by_a_stable_sort(weights, fraction, least):
    count = round(fraction * sum(w.numel() for w in weights))
    scores = {str(index): weight for index, weight in enumerate(weights)}
    with device_path(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_select, "_LEAST", least)  # many chunks, or one
        found = dict(prune_groups(scores, [(list(scores), count)]))
    for mask, expected in zip(found.values(), stable_masks(weights, count), strict=True):
        assert torch.equal(mask, expected)


@settings(max_examples=200, deadline=None)
@given(
    weights=weight_lists(),
    sparsity=st.floats(0, 0.99),
    scope=st.sampled_from(["global", "layer", "er", "erk", "redistributed"]),
    floor=st.integers(0, 1),
    least=st.sampled_from([3, 1 << 20]),
)
def test_every_scope_has_the_masks_of_the_cpu(weights, sparsity, scope, floor, least):
    weights = [weight for weight in weights if weight.ndim > 1] or [torch.ones(3, 4)]
    if scope == "redistributed":
        weights = [weight.nan_to_num(posinf=2.0, neginf=2.0).clamp(-100, 100) for weight in weights]
    scores = {str(index): weight for index, weight in enumerate(weights)}
    try:
        expected = dict(Budget(scope, floor).keep_top(scores, sparsity))
    except ValueError:
        return  # the floor protects too many
    with device_path(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_select, "_LEAST", least)
        found = dict(Budget(scope, floor).keep_top(scores, sparsity))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.9, 0.999])
def test_large_tensors_in_several_chunks_stay_exact(dtype, fraction, monkeypatch):
    monkeypatch.setattr(device_select, "_LEAST", 1 << 16)
    torch.manual_seed(0)
    weights = [torch.randn(300_000).to(dtype), torch.randn(40, 50, 30).to(dtype) * 0.1, torch.zeros(7, dtype=dtype)]
    count = round(fraction * sum(w.numel() for w in weights))
    scores = {str(index): weight for index, weight in enumerate(weights)}
    with device_path():
        found = dict(prune_groups(scores, [(list(scores), count)]))
    assert all(torch.equal(a, b) for a, b in zip(found.values(), stable_masks(weights, count), strict=True))


def test_groups_of_several_precisions_are_selected_by_value():
    scores = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([2.0, 4.0], dtype=torch.bfloat16)}
    with device_path():
        together = dict(prune_groups(scores, [(["a", "b"], 2)]))
        apart = dict(prune_groups(scores, [(["a"], 1), (["b"], 1)]))
    assert [mask.tolist() for mask in together.values()] == [[False, True], [False, True]]
    assert [mask.tolist() for mask in apart.values()] == [[False, True], [False, True]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_an_error_that_names_the_tensor(dtype):
    scores = {"fc1": torch.ones(5, dtype=dtype), "fc2": torch.tensor([1.0, float("nan")], dtype=dtype)}
    for groups in ([(["fc1", "fc2"], 3)], [(["fc1"], 2), (["fc2"], 1)]):
        with device_path(), pytest.raises(NotANumberError, match="fc2 contains NaN"):
            list(prune_groups(scores, groups))


class DeviceRanks(Ranks):
    """Two threads in place of processes, on the path of accelerators."""

    def select(self, rank, parts, count):
        from tests.core.test_select import Rank

        scores = {str(index): part for index, part in enumerate(parts)}
        half = len(scores) // 2
        names = list(scores)
        first = sum(count[:half])
        groups = [(names[:half], first), (names[half:], sum(count[half:]))] if half else [(names, sum(count))]
        return [mask for _, mask in prune_groups(scores, groups, Rank(self, rank))]


@settings(max_examples=50, deadline=None)
@given(weights=weight_lists(), fraction=st.floats(0, 1))
def test_shards_select_the_same_as_the_whole_tensor(weights, fraction):
    counts = [round(fraction * w.numel()) for w in weights]
    halves = [torch.tensor_split(w, [len(w) // 2]) for w in weights]
    with device_path():
        futures = DeviceRanks().run([[half[rank] for half in halves] for rank in range(2)], counts)
        parts = list(zip(*(future.result() for future in futures), strict=True))
    half = len(weights) // 2
    expected = stable_masks(weights[half:], sum(counts[half:]))
    if half:
        expected = stable_masks(weights[:half], sum(counts[:half])) + expected
    assert all(torch.equal(torch.cat(a), b) for a, b in zip(parts, expected, strict=True))


CHOICES = {
    "global": {},
    "layer": {"scope": "layer"},
    "erk": {"scope": "erk"},
    "redistributed": {"scope": "redistributed"},
    "floor": {"floor": 2},
    "filter": {"unit": "filter", "criterion": "l1", "floor": 1},
    "channels": {"unit": "filter", "channels": True, "floor": 1},
    "2:4": {"unit": "2:4", "sparsity": 0.5, "targets": ["3.weight", "6.weight"]},
    "offload": {"offload": True},
    "soft": {"threshold": "soft"},
    "decay": {"weight_decay_at": "pruned"},
}


def trained(method, dtype, options, *, channels_last=False):
    """Return the pruner, its model and its numbers after a few steps."""
    model = small_cnn().to(dtype)
    model = model.to(memory_format=torch.channels_last) if channels_last else model
    optimizer = sgd(model)
    pruner = getattr(regrow, method)(
        model, optimizer, **(({} if method == "SRSTE" else {"sparsity": 0.8}) | {"every": 2} | options)
    )
    train(model, optimizer, ((x.to(dtype), y) for x, y in batches(9)))
    return pruner, copy.deepcopy(model.state_dict()), pruner.stats()


def same_on_the_device_path(method, dtype, options, **more):
    pruner, state, stats = trained(method, dtype, options, **more)
    with device_path():
        other, found, numbers = trained(method, dtype, options, **more)
    assert numbers == stats
    assert all(torch.equal(other.masks[name], mask) for name, mask in pruner.masks.items())
    assert all(torch.equal(other.weights[name], weight) for name, weight in pruner.weights.items())
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor)
        assert torch.equal(torch.signbit(found[name]), torch.signbit(tensor))  # pruned weights are +0.0 in both


@pytest.mark.parametrize("options", CHOICES.values(), ids=CHOICES)
def test_training_is_bit_identical_to_training_on_the_cpu(options):
    same_on_the_device_path("DPF", torch.float32, options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_training_equals_training_on_the_cpu_in_every_precision_and_memory_format(dtype):
    same_on_the_device_path("DPF", dtype, {})
    same_on_the_device_path("DPF", dtype, {"scope": "layer"}, channels_last=True)


MOVING = ["DSR", "SET", "RigL", "SparseMomentum", "GraNet"]


@pytest.mark.parametrize("method", ["Incremental", "SFP", "DNS", "SRSTE", *MOVING])
def test_other_methods_are_bit_identical_to_those_on_the_cpu(method):
    options = {"total_steps": 20} if method in MOVING else {}
    if method == "SRSTE":
        options = {"targets": ["3.weight", "6.weight"]}
    same_on_the_device_path(method, torch.float32, {"every": 2} | options)


def test_a_collapsed_layer_is_warned_about_on_the_device_path():
    model = small_cnn()
    with torch.no_grad():
        model[0].weight.mul_(1e-6)
    with device_path(), pytest.warns(UserWarning, match=r"all of 0\.weight is pruned at step 0"):
        regrow.DPF(model, sgd(model), sparsity=0.5)


def test_the_recorded_counts_of_resnet50_are_within_the_limits():
    record = json.loads((RESULTS / "device.json").read_text(encoding="utf-8"))
    recorded = record["resnet50"]
    for scope, syncs in (("global", 2), ("layer", 4)):
        step, refresh = recorded[scope]["step"], recorded[scope]["refresh"]
        assert step["launches"] <= 8
        assert step["syncs"] == step["host_bytes"] == 0
        assert refresh["launches"] <= 120
        assert refresh["syncs"] <= syncs
        assert refresh["host_bytes"] <= 4096
        assert record["transient_share"][scope] <= 0.5


PINNED = {"global": (75, 2, 528), "layer": (75, 4, 1024)}


@pytest.mark.parametrize(("scope", "expected"), PINNED.items())
def test_a_refresh_of_resnet20_takes_the_pinned_number_of_launches(scope, expected):
    torch.manual_seed(0)
    counts = measure(build("resnet20"), scope=scope)
    step, refresh = counts["step"], counts["refresh"]
    assert (step.launches, step.syncs, step.host_bytes) == (2, 0, 0)
    assert (refresh.launches, refresh.syncs, refresh.host_bytes) == expected
