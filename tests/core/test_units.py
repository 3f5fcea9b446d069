"""Units: filters by several criteria, and N of M weights in a row of input channels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from regrow.core.units import CRITERIA
from tests.core.nets import batches, sgd, small_cnn, train

patterns = st.sampled_from([(1, 2), (2, 4), (1, 4), (3, 4), (4, 8)])


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    convs = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 6, 1), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10))


def groups(name: str, tensor: torch.Tensor, m: int) -> torch.Tensor:
    """One row per group: neighbors along the input channels, which come first in a transposed convolution."""
    inputs = 0 if name == "2.weight" else 1
    return tensor.transpose(inputs, -1).reshape(-1, m)


@settings(max_examples=25, deadline=None)
@given(pattern=patterns, seed=st.integers(0, 99), method=st.sampled_from(["DPF", "Incremental", "OneShot", "SNIP"]))
def test_every_group_has_exactly_n_of_m_weights(pattern, seed, method):
    n, m = pattern
    model = net(seed)
    optimizer = sgd(model)
    options = {"every": 2} if method in ("DPF", "Incremental") else {}
    pruner = getattr(regrow, method)(model, optimizer, sparsity=1 - n / m, unit=f"{n}:{m}", **options)
    train(model, optimizer, batches(5))
    assert all(bool((groups(name, mask, m).sum(1) == n).all()) for name, mask in pruner.masks.items())
    assert pruner.sparsity == pytest.approx(1 - n / m)
    divisible = {"2.weight", "6.weight"} | ({"3.weight"} if m == 2 else set())
    assert set(pruner.masks) == divisible


def test_the_largest_of_a_group_stay_and_of_equals_the_last():
    layer = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[4.0, -3.0, 2.0, 1.0, 0.5, 0.5, -0.5, 0.5]]))
    pruner = regrow.OneShot(layer, sgd(layer), sparsity=0.5, unit="2:4", include_last=True)
    assert pruner.masks["weight"].int().tolist() == [[1, 1, 0, 0, 0, 0, 1, 1]]


@settings(max_examples=15, deadline=None)
@given(pattern=patterns, seed=st.integers(0, 99), method=st.sampled_from(["DPF", "Incremental"]), data=st.data())
def test_a_ramp_converts_groups_one_after_another(pattern, seed, method, data):
    n, m = pattern
    model = net(seed)
    optimizer = sgd(model)
    ramp = regrow.Cubic(1 - n / m, end=8)
    pruner = getattr(regrow, method)(model, optimizer, sparsity=ramp, unit=f"{n}:{m}", every=1)
    before = pruner.masks.clone()
    for t, batch in enumerate(batches(10), start=1):
        train(model, optimizer, [batch])
        kept = torch.cat([groups(name, mask, m).sum(1) for name, mask in pruner.masks.items()])
        assert set(kept.tolist()) <= {n, m}
        assert int((kept == n).sum()) == round(len(kept) * min(ramp(t) / (1 - n / m), 1))
        if method == "Incremental":
            assert not any(bool((mask & ~before[name]).any()) for name, mask in pruner.masks.items())
        before = pruner.masks.clone()


def test_groups_that_lose_least_are_converted_first():
    layer = nn.Linear(8, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[9.0, 8, 3, 3, 1, 1, 1, 1], [5, 5, 2, 2, 7, 0, 9, 1]]))
    pruner = regrow.OneShot(layer, sgd(layer), sparsity=lambda t: 0.25, unit="2:4", include_last=True)
    assert pruner.masks["weight"].int().tolist() == [[1, 1, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 0, 1, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"unit": "2:4", "sparsity": 0.9},
            r"'2:4' prunes exactly 0.5 .* must be 0.5 or a ramp to it, got 0.9",
        ),
        ({"unit": "2:4", "sparsity": regrow.Cubic(0.75, end=9)}, "sparsity must be 0.5 or a ramp to it, got 0.75"),
        ({"unit": "2:4", "sparsity": lambda t: 0.6}, "prunes at most 0.5, the schedule requests 0.6"),
        ({"unit": "4:4", "sparsity": 0.0}, "N:M with 0 < N < M such as '2:4', got '4:4'"),
        ({"unit": "channel", "sparsity": 0.5}, "got 'channel'"),
        (
            {"unit": "2:4", "sparsity": 0.5, "targets": "0"},
            "input channels in multiples of 4, but 0.weight has 1: leave",
        ),
        ({"unit": "20:40", "sparsity": 0.5}, "in multiples of 40, but 0.weight has 1"),
        (
            {"unit": "filter", "criterion": "l3", "sparsity": 0.5},
            "criterion must be one of l2, l1, rms, fpgm, bn, got 'l3'",
        ),
    ],
)
def test_what_a_unit_cannot_do_is_said(options, message):
    model = net()
    with pytest.raises(ValueError, match=message):
        regrow.DPF(model, sgd(model), **options)


@pytest.mark.filterwarnings("ignore:all of .* is pruned")
@pytest.mark.parametrize("criterion", list(CRITERIA))
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_filters_of_least_score_are_pruned_as_a_whole(criterion, scope):
    model = small_cnn()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    pruner = regrow.OneShot(model, sgd(model), sparsity=0.5, unit="filter", criterion=criterion, scope=scope)
    scores = {name: [naive(criterion, weights[name], i) for i in range(len(weights[name]))] for name in pruner.masks}
    kept = {name: [bool(row.all()) for row in mask.flatten(1)] for name, mask in pruner.masks.items()}
    assert all(bool(row.any()) == bool(row.all()) for mask in pruner.masks.values() for row in mask.flatten(1))
    for pool in [list(scores)] if scope == "global" else [[name] for name in scores]:
        order = sorted((score, keep) for name in pool for score, keep in zip(scores[name], kept[name], strict=True))
        assert [keep for _, keep in order] == sorted(keep for _, keep in order)
        assert sum(not keep for _, keep in order) == round(0.5 * len(order))


def naive(criterion: str, weight: torch.Tensor, index: int) -> float:
    rows = weight.flatten(1).double()
    row = rows[index]
    return {
        "l2": lambda: row.square().sum().sqrt(),
        "l1": lambda: row.abs().sum(),
        "rms": lambda: row.square().mean().sqrt(),
        "fpgm": lambda: sum((row - other).square().sum().sqrt() for other in rows),
    }[criterion]().item()
