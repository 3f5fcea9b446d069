"""`sparsity={"layer4.*": 0.95, "*": 0.8}`: each pattern is a group of targets with an exact count of its own."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from regrow.core.budget import Budget
from tests.core.nets import batches, sgd, small_cnn, train
from tests.core.reference import algorithm_1
from tests.core.test_select import weight_lists
from tests.methods.every_method import TOTAL

CONVS = ("0.weight", "3.weight")
ALL = (*CONVS, "6.weight")  # the targets of small_cnn(); its last layer, 8, stays dense


def pruned(masks, names):
    return sum(int((~masks[name]).sum()) for name in names)


def size(model, names):
    return sum(model.get_parameter(name).numel() for name in names)


@settings(max_examples=150, deadline=None)
@given(weights=weight_lists(), data=st.data())
def test_every_group_loses_exactly_its_number_of_weights(weights, data):
    scores = {str(index): weight for index, weight in enumerate(weights)}
    scope = data.draw(st.sampled_from(["global", "er", "erk"]))
    of = {name: data.draw(st.integers(0, 2)) for name in scores}
    parts = [
        ([name for name in scores if of[name] == group], data.draw(st.floats(0, 0.99))) for group in set(of.values())
    ]
    masks = dict(Budget(scope).keep_top(scores, parts))
    assert set(masks) == set(scores)
    for names, fraction in parts:
        assert pruned(masks, names) == round(sum(scores[name].numel() for name in names) * fraction)
        alone = dict(Budget(scope).keep_top({name: scores[name] for name in names}, fraction))
        assert all(torch.equal(masks[name], alone[name]) for name in names)


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("soft", [False, True])
def test_two_groups_train_like_algorithm_1_with_two_thresholds(scope, soft):
    convs, others = regrow.Cubic(0.9, end=20), regrow.Constant(0.5)
    expected = algorithm_1(
        small_cnn(),
        list(ALL),
        sgd,
        {CONVS: convs, ("6.weight",): others},
        batches(30),
        period=4,
        per_layer=scope == "layer",
        soft=soft,
    )
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.DPF(
        model,
        optimizer,
        sparsity={"[03].weight": convs, "*": others},
        every=4,
        scope=scope,
        threshold="soft" if soft else "hard",
    )
    for (loss, dense, masks), batch in zip(expected, batches(30), strict=True):
        assert train(model, optimizer, iter([batch])) == [pytest.approx(loss, rel=1e-5)]
        if pruner.step % 4:  # after an update the reference still shows the old masks
            assert all(torch.equal(pruner.masks[name], mask) for name, mask in masks.items())
        assert all(torch.allclose(pruner.weights[name], dense[name], atol=1e-5) for name in ALL)


def test_one_group_of_all_layers_is_bit_identical_to_a_sparsity_without_groups():
    ends = []
    for sparsity in (regrow.Cubic(0.9, end=20), {"*": regrow.Cubic(0.9, end=20)}):
        model = small_cnn()
        optimizer = sgd(model)
        pruner = regrow.DPF(model, optimizer, sparsity=sparsity)
        ends.append((train(model, optimizer, batches(30)), pruner.every, pruner.sparsity, pruner.requested))
    assert ends[0] == ends[1]


WAYS = {
    "DPF": {"every": 2},
    "Incremental": {"every": 2},
    "OneShot": {"at": 3},
    "SNIP": {},
    "RigL": {"every": 2, "total_steps": TOTAL, "scope": "global"},
    "SET": {"every": 2, "total_steps": TOTAL, "scope": "global"},
    "DeepR": {"total_steps": TOTAL, "scope": "global"},
    "Static": {"scope": "erk"},
    "ACDC": {"total_steps": TOTAL},
    "GraNet": {"every": 2, "total_steps": TOTAL},
    "DNS": {"gamma": 0.0},
}


@pytest.mark.parametrize("method", WAYS)
def test_every_method_meets_the_count_of_each_group(method):
    model = small_cnn()
    optimizer = sgd(model, weight_decay=0)
    pruner = getattr(regrow, method)(model, optimizer, sparsity={"0": 0.5, "*": 0.8}, **WAYS[method])
    train(model, optimizer, batches(TOTAL))
    for names, fraction in ((("0.weight",), 0.5), (("3.weight", "6.weight"), 0.8)):
        assert pruned(pruner.masks, names) == round(size(model, names) * fraction)
    assert pruner.levels == {"0": 0.5, "*": 0.8}
    assert pruner.stats().requested == pytest.approx(pruner.sparsity, abs=1e-3)


def test_filters_are_counted_in_every_layer_of_a_group():
    model = small_cnn()
    pruner = regrow.SFP(model, sgd(model), sparsity={"0": 0.25, "*": 0.5})
    assert [int((~pruner.masks[name]).flatten(1).all(1).sum()) for name in ALL] == [2, 6, 10]


@pytest.mark.parametrize("method", ["SparseMomentum", "DSR"])
def test_a_method_that_moves_weights_between_layers_takes_one_number(method):
    model = small_cnn()
    with pytest.raises(TypeError, match=f"{method} moves connections between all layers: sparsity must be one number"):
        getattr(regrow, method)(model, sgd(model), sparsity={"0": 0.5, "*": 0.8}, total_steps=TOTAL)


def test_with_a_falling_ramp_no_pruned_weight_returns_in_any_group():
    model = small_cnn()
    optimizer = sgd(model)
    falls = {"0": lambda t: 0.8 if t < 4 else 0.2, "*": lambda t: min(0.9, 0.1 + 0.1 * t)}
    pruner = regrow.Incremental(model, optimizer, sparsity=falls, every=1)
    train(model, optimizer, batches(8))
    assert pruner.levels == {"0": 0.8, "*": pytest.approx(0.9)}
    assert pruned(pruner.masks, ["0.weight"]) == round(size(model, ["0.weight"]) * 0.8)


def test_a_resumed_run_ends_where_the_uninterrupted_one_does():
    def attached():
        model = small_cnn()
        optimizer = sgd(model)
        sparsity = {"[03].*": regrow.Cubic(0.9, end=20), "*": 0.5}
        return model, optimizer, regrow.Incremental(model, optimizer, sparsity=sparsity, every=4)

    model, optimizer, pruner = attached()
    train(model, optimizer, batches(15))
    saved = [part.state_dict() for part in (model, optimizer, pruner)]
    saved = torch.utils._pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, saved)
    train(model, optimizer, batches(30), start=15)
    again = attached()
    for part, state in zip(again, saved, strict=True):
        part.load_state_dict(state)
    assert again[2].levels == saved[2]["levels"]
    train(again[0], again[1], batches(30), start=15)
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), again[0].state_dict().values(), strict=True)
    )


def test_a_state_of_other_groups_is_refused():
    model = small_cnn()
    state = regrow.DPF(model, sgd(model), sparsity={"0": 0.5, "*": 0.8}).state_dict()
    other = small_cnn()
    pruner = regrow.DPF(other, sgd(other), sparsity={"0": 0.6, "*": 0.8})
    with pytest.raises(ValueError, match="the state was saved with schedule="):
        pruner.load_state_dict(state)


@pytest.mark.parametrize(
    ("sparsity", "message"),
    [
        (
            {"7.*": 0.5, "*": 0.8},
            r"no target matches '7\.\*' in sparsity\. The targets are 0\.weight, 3\.weight, 6\.weight",
        ),
        ({"8": 0.5, "*": 0.8}, "no target matches '8' in sparsity"),  # the last layer stays dense
        ({"0": 0.5}, r"no pattern in sparsity \('0'\) matches 3\.weight \(2 in all\)\. Add '\*'"),
        ({"*": 0.8, "0": 0.5}, r"'0' in sparsity comes after '\*', which match all of its targets: put it first"),
        ({"0": 90, "*": 0.8}, r"sparsity\['0'\] must be in \[0, 1\), got 90\. Did you mean 0\.9\?"),
        ({"0": "half", "*": 0.8}, r"sparsity\['0'\] must be a number in \[0, 1\) or a schedule, got 'half'"),
        ({"0": lambda t: 2, "*": 0.8}, r"the schedule's value of sparsity\['0'\] at step 0 must be in"),
        ({0: 0.5}, "sparsity must have names or globs as its keys, got 0"),
        ({}, "no pattern in sparsity"),
    ],
)
def test_a_wrong_pattern_is_named(sparsity, message):
    model = small_cnn()
    with pytest.raises((TypeError, ValueError), match=message):
        regrow.DPF(model, sgd(model), sparsity=sparsity)


def test_a_group_that_cannot_reach_its_sparsity_is_named():
    model = small_cnn()
    sparsity = {"0": 0.5, "*": regrow.Cubic(0.8, end=200)}
    with pytest.raises(ValueError, match=r"the sparsity of 80\.0% of '\*' is not reached"):
        regrow.DPF(model, sgd(model), sparsity=sparsity, total_steps=100)


def test_saving_names_the_group_that_is_not_finished(tmp_path):
    model = small_cnn()
    pruner = regrow.DPF(model, sgd(model), sparsity={"0": 0.5, "*": regrow.Cubic(0.8, end=200)})
    with pytest.warns(UserWarning, match=r"target of 0\.0% for '\*', and its schedule ends at 80\.0%"):
        regrow.save(model, tmp_path / "model.regrow")
    pruner.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regrow.save(model, tmp_path / "model.regrow")


def test_a_lottery_ticket_takes_one_number():
    with pytest.raises(TypeError, match="sparsity must be a number"):
        regrow.LotteryTicket(nn.Linear(4, 4), {"*": 0.5}, include_last=True)
