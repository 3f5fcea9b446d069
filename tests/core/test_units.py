"""Units: filters by several criteria, and N of M weights in a row of input channels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd.functional import jacobian
from torch.func import functional_call

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
        ({"unit": "4:4", "sparsity": 0.0}, "N:M needs 0 < N < M, such as '2:4', got '4:4'"),
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
def test_options_that_a_unit_does_not_support_are_errors(options, message):
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


GROUPED = [(4, 4, 4), (8, 8, 2), (6, 12, 3), (8, 4, 4)]  # inputs, outputs, groups; the first is depthwise


@pytest.mark.parametrize(("inputs", "outputs", "groups"), GROUPED)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_each_group_of_a_transposed_convolution_has_its_own_filters(inputs, outputs, groups, dimensions):
    torch.manual_seed(0)
    layer = getattr(nn, f"ConvTranspose{dimensions}d")(inputs, outputs, 2, groups=groups, bias=False)
    x, rest = torch.randn(2, inputs, *[3] * dimensions), (0, *range(2, 2 + dimensions))
    weight = layer.weight.detach().clone()
    # Which weights a filter consists of, from what they do: those on which its output channel depends.
    used = jacobian(lambda w: functional_call(layer, {"weight": w}, x).sum(rest), weight).flatten(1) != 0
    norms = torch.stack([weight.flatten()[row].norm() for row in used])
    pruner = regrow.OneShot(layer, sgd(layer), sparsity=0.5, unit="filter", include_last=True)
    dead = layer(x).abs().sum(rest) == 0
    assert (pruner.sparsity, int(dead.sum())) == (0.5, outputs // 2)
    assert norms[dead].max() < norms[~dead].min()


def test_bias_and_batch_norm_of_grouped_filters_are_masked_with_them():
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(8, 8, 3, groups=4), nn.BatchNorm2d(8), nn.ReLU())
    regrow.OneShot(model, sgd(model), sparsity=0.5, unit="filter", channels=True)
    dead = model(torch.randn(2, 8, 4, 4)).abs().sum((0, 2, 3)) == 0
    assert int(dead.sum()) == 4
    assert all(torch.equal(parameter == 0, dead) for parameter in (model[0].bias, model[1].weight))
    ranked = nn.Sequential(nn.ConvTranspose2d(8, 8, 3, groups=4), nn.BatchNorm2d(8))
    with torch.no_grad():
        ranked[1].weight.copy_(torch.tensor([1.0, 8, 2, 7, 3, 6, 4, 5]))
    regrow.OneShot(ranked, sgd(ranked), sparsity=0.5, unit="filter", criterion="bn")
    kept = ranked[0](torch.randn(2, 8, 4, 4)).var((0, 2, 3)) > 0
    assert kept.tolist() == [False, True, False, True, False, True, False, True]


def test_n_of_m_weights_lie_inside_a_group_of_a_transposed_convolution():
    layer = nn.ConvTranspose2d(8, 8, 3, groups=4)  # each filter sees two inputs
    with pytest.raises(ValueError, match="in multiples of 4, but weight has 2 in each group"):
        regrow.OneShot(layer, sgd(layer), sparsity=0.5, unit="2:4", include_last=True)
    layer = nn.ConvTranspose2d(8, 8, 3, groups=2)
    pruner = regrow.OneShot(layer, sgd(layer), sparsity=0.5, unit="2:4", include_last=True)
    assert bool((pruner.masks["weight"].view(2, 4, 4, 9).sum(1) == 2).all())


def test_the_gradients_of_dead_grouped_filters_are_bounded_one_by_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 3, groups=4, bias=False))
    optimizer = sgd(model, lr=0.0, momentum=0.0, nesterov=False, weight_decay=0.0)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, unit="filter", stabilize=True)
    dead = ~pruner.masks["0.weight"].flatten(1).any(1)
    size = torch.tensor([1.0, 2.0, 3.0, 4.0]) * torch.where(dead, 100, 1)
    model[0].weight.grad = size.view(4, 1, 1, 1).expand(4, 1, 3, 3).clone()
    optimizer.step()
    found = model[0].weight.grad[:, 0, 0, 0]
    assert torch.equal(found[~dead], size[~dead])
    assert torch.allclose(found[dead], size[~dead].median())
