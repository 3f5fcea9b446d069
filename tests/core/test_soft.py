"""DPF with a soft threshold: the model holds m⊙sign(w)·max(|w| − τ, 0), bit for bit, through a whole life."""

import copy
import io
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import regrow
from tests.core.nets import batches, sgd, small_cnn, train
from tests.core.reference import algorithm_1
from tests.core.test_algorithm import TARGETS, adamw
from tests.core.test_shards import in_group, same_training
from tests.train.together import run_together

OPTIONS = {"sparsity": regrow.Cubic(0.9, end=16, initial=0.3), "every": 4, "threshold": "soft"}


def attached(seed=0, **options):
    model = small_cnn(seed)
    optimizer = sgd(model)
    return model, optimizer, regrow.DPF(model, optimizer, **(OPTIONS | options))


def taus(pruner):
    return pruner.state_dict()["tau"]


def expected(pruner, name):
    w, tau = pruner.weights[name], taus(pruner)[name]
    return torch.where(pruner.masks[name], w.sign() * (w.abs() - tau).clamp(min=0), 0)


def holds_what_it_should(model, pruner):
    return all(torch.equal(model.get_parameter(name), expected(pruner, name)) for name in pruner.masks)


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("sparsity", [0.8, regrow.Cubic(0.9, end=80)])
@pytest.mark.parametrize("every", [1, 16])
def test_weights_masks_and_losses_equal_the_literal_algorithm(make_optimizer, scope, sparsity, every):
    model = small_cnn()
    schedule = sparsity if callable(sparsity) else lambda t: sparsity
    reference = algorithm_1(
        copy.deepcopy(model),
        TARGETS,
        make_optimizer,
        schedule,
        batches(100),
        period=every,
        per_layer=scope == "layer",
        soft=True,
    )
    optimizer = make_optimizer(list(model.parameters()))
    pruner = regrow.DPF(model, optimizer, sparsity=sparsity, scope=scope, every=every, threshold="soft")
    for step, ((loss, w, m), (x, y)) in enumerate(zip(reference, batches(100), strict=True)):
        assert all(torch.equal(pruner.masks[name], m[name]) for name in TARGETS), step
        assert train(model, optimizer, [(x, y)]) == [loss], step
        with pruner.dense():
            assert all(torch.equal(p, w[name]) for name, p in model.named_parameters()), step
    assert holds_what_it_should(model, pruner)


def test_weight_decay_at_the_pruned_weights_is_taken_at_the_shrunk_ones():
    model, strength = small_cnn(), 0.05
    reference = algorithm_1(
        copy.deepcopy(model),
        [name for name, _ in model.named_parameters() if name in TARGETS],
        lambda params: sgd(params, weight_decay=0),
        lambda t: 0.8,
        batches(20),
        period=4,
        soft=True,
        decay_at_pruned=strength,
    )
    optimizer = sgd(model, weight_decay=strength)
    pruner = regrow.DPF(model, optimizer, sparsity=0.8, every=4, threshold="soft", weight_decay_at="pruned")
    for (loss, w, _), batch in zip(reference, batches(20), strict=True):
        assert train(model, optimizer, [batch]) == [loss]
        assert all(torch.equal(pruner.weights[name], w[name]) for name in TARGETS)


def test_at_sparsity_zero_training_is_unchanged():
    plain = small_cnn()
    model, optimizer, _ = attached(sparsity=0.0)
    assert train(plain, sgd(plain), batches(30)) == train(model, optimizer, batches(30))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def layer_with(values):
    layer = nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([values]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    return layer, optimizer


def test_the_threshold_is_the_largest_pruned_magnitude_and_stays_until_the_next_mask():
    layer, optimizer = layer_with([0.5, -1.0, 2.0, -4.0])
    pruner = regrow.DPF(layer, optimizer, sparsity=0.5, every=2, include_last=True, threshold="soft")
    assert layer.weight.tolist() == [[0, 0, 1, -3]]
    layer.weight.grad = torch.tensor([[-7.5, 0, 1.5, 0]])
    optimizer.step()  # the pruned weight is the largest now, a kept one is below the threshold: no new mask yet
    assert layer.weight.tolist() == [[0, 0, 0, -3]]
    assert pruner.masks["weight"].tolist() == [[False, False, True, True]]
    assert pruner.sparsity == 0.5
    layer.weight.grad = torch.zeros(1, 4)
    optimizer.step()
    assert layer.weight.tolist() == [[7, 0, 0, -3]]
    with pruner.dense():
        assert layer.weight.tolist() == [[8, -1, 0.5, -4]]


def test_kept_weights_that_tie_with_the_threshold_are_zero_and_counted_as_kept():
    layer, optimizer = layer_with([1.0, -1.0, 1.0, 3.0])
    pruner = regrow.DPF(layer, optimizer, sparsity=0.5, include_last=True, threshold="soft")
    assert pruner.masks["weight"].tolist() == [[False, False, True, True]]
    assert layer.weight.tolist() == [[0, 0, 0, 2]]
    assert pruner.sparsity == pruner.stats().layers["weight"] == 0.5


def test_delta_includes_what_is_subtracted_from_kept_weights():
    layer, optimizer = layer_with([1.0, 2.0])
    pruner = regrow.DPF(layer, optimizer, sparsity=0.5, include_last=True, threshold="soft")
    assert pruner.stats().delta == pytest.approx((1 + 1) / (1 + 4))


weights = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 999), st.booleans())


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(weights, min_size=1, max_size=4),
    sparsity=st.floats(0, 0.99),
    scope=st.sampled_from(["global", "layer", "erk", "redistributed"]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_counts_are_exact_and_only_ties_are_zero(shapes, sparsity, scope, dtype):
    model = nn.Sequential(*(nn.Linear(columns, rows, bias=False) for rows, columns, *_ in shapes)).to(dtype)
    with torch.no_grad():
        for layer, (rows, columns, seed, ties) in zip(model, shapes, strict=True):
            values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
            layer.weight.copy_((values * 2).round() / 2 if ties else values)
    hard = copy.deepcopy(model)
    options = {"sparsity": sparsity, "scope": scope, "include_last": True}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "all of")
        plain = regrow.DPF(hard, torch.optim.SGD(hard.parameters(), lr=0.1), **options)
        soft = regrow.DPF(model, torch.optim.SGD(model.parameters(), lr=0.1), **options, threshold="soft")
    total = sum(p.numel() for p in model.parameters())
    if scope != "layer":
        assert soft.masks.kept == total - round(total * sparsity)
    assert all(torch.equal(mask, plain.masks[name]) for name, mask in soft.masks.items())
    pools = [list(soft.masks)] if scope == "global" else [[name] for name in soft.masks]
    for pool in pools:
        gone = [float(soft.weights[name][~soft.masks[name]].abs().max()) for name in pool if not soft.masks[name].all()]
        tau = max(gone, default=0.0)
        for name in pool:
            assert taus(soft)[name] == tau
            shown, w = model.get_parameter(name), soft.weights[name]
            assert torch.equal(shown != 0, soft.masks[name] & (w.abs() > tau))
            assert bool((shown.sign() * w.sign() >= 0).all())


RESUMED = {"plain": {}, "offload": {"offload": True}, "per layer": {"scope": "layer"}}


@pytest.mark.parametrize("kind", list(RESUMED))
@pytest.mark.parametrize("settle", [{}, {"settle": 0.3, "total_steps": 24}])
def test_a_run_saved_at_any_step_and_resumed_ends_where_the_uninterrupted_one_does(kind, settle):
    options = RESUMED[kind] | settle
    model, optimizer, pruner = attached(**options)
    states = []
    for batch in [None, *batches(24)]:
        train(model, optimizer, [] if batch is None else [batch])
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (model, optimizer, pruner)], file)
        states.append(file)
    for start in range(0, 25, 3):
        states[start].seek(0)
        again = attached(seed=start + 1, **options)
        for part, state in zip(again, torch.load(states[start], weights_only=True), strict=True):
            part.load_state_dict(state)
        train(again[0], again[1], batches(24), start=start)
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), again[0].state_dict().values(), strict=True)
        ), start
        assert all(torch.equal(weight, again[2].weights[name]) for name, weight in pruner.weights.items()), start
        assert pruner.stats() == again[2].stats()


def test_a_hard_and_a_soft_run_do_not_continue_each_other():
    soft, hard = attached()[2], attached(threshold="hard")[2]
    with pytest.raises(ValueError, match="saved with threshold='soft', this pruner has threshold='hard'"):
        hard.load_state_dict(soft.state_dict())
    with pytest.raises(ValueError, match="saved with threshold='hard', this pruner has threshold='soft'"):
        soft.load_state_dict(hard.state_dict())
    with pytest.raises(ValueError, match="not the state of a pruner"):
        soft.load_state_dict({})


def test_an_offloaded_training_has_the_same_bits():
    plain, offloaded = attached(), attached(offload=True)
    for model, optimizer, _ in (plain, offloaded):
        train(model, optimizer, batches(18))
    assert all(torch.equal(a, b) for a, b in zip(plain[0].parameters(), offloaded[0].parameters(), strict=True))
    assert all(torch.equal(w, offloaded[2].weights[name]) for name, w in plain[2].weights.items())
    outside = offloaded[2].stats()
    with offloaded[2].dense():
        assert offloaded[2].stats() == outside == plain[2].stats()
        state = offloaded[2].state_dict()
    assert all(torch.equal(w, state["dense"][name]) for name, w in plain[2].weights.items())


@pytest.mark.parametrize("offload", [False, True])
def test_freezing_continues_from_the_weights_in_the_model(offload):
    model, optimizer, pruner = attached(offload=offload)
    train(model, optimizer, batches(10))
    shown, masks = copy.deepcopy(model), pruner.masks.clone()
    pruner.freeze()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), shown.parameters(), strict=True))
    assert all(torch.equal(pruner.weights[name], shown.get_parameter(name)) for name in masks)
    optimizer = sgd(model)
    plain = sgd(shown)
    pruner.detach()
    regrow.Fixed(model, optimizer, masks)
    regrow.Fixed(shown, plain, masks)
    assert train(model, optimizer, batches(5)) == train(shown, plain, batches(5))


def test_a_frozen_pruner_keeps_training_without_a_threshold():
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(10))
    pruner.freeze()
    twin = copy.deepcopy(model)
    other = sgd(twin)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    regrow.Fixed(twin, other, pruner.masks)
    assert train(model, optimizer, batches(10, seed=4)) == train(twin, other, batches(10, seed=4))
    assert pruner.stats().delta == 0
    assert "dense" not in pruner.state_dict()


def test_a_settled_mask_stays_fixed_and_training_continues_from_the_model():
    model, optimizer, pruner = attached(settle=0.25, total_steps=40)
    train(model, optimizer, batches(30))
    resting, shown = pruner.masks.clone(), copy.deepcopy(model)
    train(model, optimizer, batches(1, seed=5))
    assert pruner.stats().delta == 0
    assert all(torch.equal(resting[name], mask) for name, mask in pruner.masks.items())
    moved = (model[6].weight - shown[6].weight).abs().max()
    assert 0 < moved < 0.05, "the weights move on from ŵ, not from w, which lies farther away"


def test_copies_and_averages_hold_the_shrunk_weights():
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(9))
    clone = copy.deepcopy(model)
    assert holds_what_it_should(clone, pruner)
    with pruner.dense():
        assert all(torch.equal(model.get_parameter(name), w) for name, w in pruner.weights.items())
    assert holds_what_it_should(model, pruner)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    train(model, optimizer, batches(8))
    average.update_parameters(model)
    pruner.apply_to(average)
    for name, mask in pruner.masks.items():
        assert not average.module.get_parameter(name)[~mask].any()
    pruner.detach()
    assert holds_what_it_should(model, pruner)


def test_swapping_an_average_in_and_back_keeps_the_dense_weights():
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(10))
    behind, shown = copy.deepcopy(pruner.weights), copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    model.load_state_dict(shown)
    assert pruner.stats().step == 10  # which takes over what was written
    assert all(torch.equal(weight, behind[name]) for name, weight in pruner.weights.items())


@pytest.mark.parametrize("offload", [False, True])
def test_written_weights_inside_the_mask_become_those_of_the_model(offload):
    model, optimizer, pruner = attached(offload=offload)
    train(model, optimizer, batches(10))
    behind = copy.deepcopy(pruner.weights)
    with torch.no_grad():
        model[6].weight.mul_(2)
        model[6].weight[:4] = 0
    written, mask = model[6].weight.clone(), pruner.masks["6.weight"]
    pruner.restore()
    with pruner.dense():
        assert not torch.equal(model[6].weight, written)
    assert torch.allclose(model[6].weight, written, rtol=0, atol=1e-7)
    assert torch.equal(pruner.weights["6.weight"][~mask], behind["6.weight"][~mask])
    assert torch.equal(pruner.weights["0.weight"], behind["0.weight"])


def test_written_weights_where_the_mask_has_none_become_the_dense_ones():
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(10))
    other = small_cnn(seed=7)
    model.load_state_dict(other.state_dict())
    with pytest.warns(UserWarning, match="become its dense weights"):
        pruner.restore()
    assert all(torch.equal(weight, other.get_parameter(name)) for name, weight in pruner.weights.items())


def test_a_write_through_data_is_found_and_training_alone_is_not_taken_for_one():
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(40))  # warnings are errors here
    model[6].weight.data.mul_(1.5)
    with pytest.warns(UserWarning, match=r"6\.weight was written through \.data"):
        pruner.restore()


def test_a_failed_step_loses_nothing():
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(6))
    before, shown = copy.deepcopy(pruner.weights), copy.deepcopy(model)

    def fail(*_):
        raise InterruptedError

    hook = optimizer.register_step_pre_hook(fail)
    with pytest.raises(InterruptedError):
        train(model, optimizer, batches(1))
    hook.remove()
    pruner.restore()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), shown.parameters(), strict=True))
    assert all(torch.equal(weight, before[name]) for name, weight in pruner.weights.items())


def test_a_filter_whose_kept_weights_have_shrunk_to_zero_is_bounded_as_a_dead_one():
    model, optimizer, pruner = attached(sparsity=0.6, every=1000, stabilize=True)
    train(model, optimizer, batches(1))
    with pruner.dense(), torch.no_grad():
        model[0].weight[:2].mul_(1e-3)  # below the threshold, which stays until the next mask
        model[1].bias.fill_(0.1)  # so that gradients pass the ReLU
    assert pruner.masks["0.weight"][:2].any()
    live = model[0].weight.flatten(1).any(1)
    assert not live[:2].any()
    x, y = next(iter(batches(1)))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    before = torch.linalg.vector_norm(model[0].weight.grad.flatten(1), dim=1)
    optimizer.step()
    after = torch.linalg.vector_norm(model[0].weight.grad.flatten(1), dim=1)
    median = before[live].median()
    assert (before[:2] > 5 * median).all(), "batch norm amplifies what a dead filter gets"
    assert torch.allclose(after[:2], median.expand(2))


def test_options_that_a_soft_threshold_does_not_support_are_refused_before_anything_changes():
    model = small_cnn()
    before = copy.deepcopy(model.state_dict())
    for options, message in (
        ({"threshold": "sotf"}, "threshold must be 'hard' .* or 'soft' .*, got 'sotf'"),
        ({"threshold": "soft", "unit": "filter"}, "needs unit='weight', got unit='filter'"),
        ({"threshold": "soft", "unit": "2:4"}, "needs unit='weight', got unit='2:4'"),
        ({"threshold": "soft", "floor": 2}, "floor=2 needs threshold='hard'"),
    ):
        with pytest.raises(ValueError, match=message):
            regrow.DPF(model, sgd(model), sparsity=0.5, **options)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


CHOICES = [
    {},
    {"scope": "layer"},
    {"weight_decay_at": "pruned"},
    {"offload": True},
    {"stabilize": True, "settle": 0.2, "total_steps": 50},
]


def sharded(model):
    fully_shard(model)
    return model


def compare_trainings(wrap):
    for choice in CHOICES:
        same_training("DPF", OPTIONS | choice, wrap)


@pytest.mark.parametrize("wrap", [sharded, DistributedDataParallel])
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_training_in_several_processes_is_that_of_one(size, wrap):
    run_together(size, in_group, compare_trainings, wrap)


def resume_sharded():
    model = sharded(small_cnn(norm=False))
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, **OPTIONS)
    train(model, optimizer, batches(6))
    states = copy.deepcopy([part.state_dict() for part in (model, optimizer, pruner)])
    train(model, optimizer, batches(12), start=6)
    again = sharded(small_cnn(1, norm=False))
    other = sgd(again)
    parts = again, other, regrow.DPF(again, other, **OPTIONS)
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
    train(again, other, batches(12), start=6)
    assert taus(pruner) == taus(parts[2])
    for name, weight in pruner.weights.items():
        assert torch.equal(weight, parts[2].weights[name])
    assert pruner.stats() == parts[2].stats()


def test_sharded_runs_resume_bit_for_bit():
    run_together(2, in_group, resume_sharded)
