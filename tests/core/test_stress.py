"""Interrupted steps, odd optimizers and odd moments to read or load: nothing is lost and nothing is counted twice."""

import copy
import pickle

import pytest
import torch
from torch import nn

import regrow
from regrow.core.bits import bits, in_memory_order
from tests.core.nets import batches, sgd, small_cnn, step, train


def attached(**options):
    model = small_cnn()
    optimizer = sgd(model)
    return model, optimizer, regrow.DPF(model, optimizer, **({"sparsity": 0.5, "every": 2} | options))


def snapshot(model, optimizer, pruner):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))


def reload(states, model, optimizer, pruner):
    for state, owner in zip(states, (model, optimizer, pruner), strict=True):
        owner.load_state_dict(state)


@pytest.mark.parametrize("inside", ["dense", "interrupted step"])
def test_a_checkpoint_loads_exactly_inside_dense_and_after_an_interrupted_step(inside):
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(3))
    states = snapshot(model, optimizer, pruner)
    expected = train(model, optimizer, batches(6, seed=8))
    if inside == "dense":
        with pruner.dense():
            reload(states, model, optimizer, pruner)
    else:
        optimizer.param_groups[0]["momentum"] = "broken"
        with pytest.raises(TypeError):
            train(model, optimizer, batches(1))
        reload(states, model, optimizer, pruner)
    assert train(model, optimizer, batches(6, seed=8)) == expected


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("wrong", ["setting", "model"])
def test_a_state_that_is_refused_after_an_interrupted_step_loses_nothing(wrong, offload):
    model, optimizer, pruner = attached(offload=offload)
    train(model, optimizer, batches(3))
    state = copy.deepcopy(pruner.state_dict())
    train(model, optimizer, batches(3, seed=8))  # makes other masks
    dense, pruned = copy.deepcopy(pruner.weights), copy.deepcopy(model.state_dict())
    if wrong == "setting":
        state["every"] = 3

    def fail(*_):
        raise InterruptedError

    hook = optimizer.register_step_pre_hook(fail)
    with pytest.raises(InterruptedError):
        optimizer.step()
    hook.remove()
    with pytest.raises(
        ValueError, match="every=3" if wrong == "setting" else "load the model's state of the same moment"
    ):
        pruner.load_state_dict(state)
    pruner.restore()
    assert all(torch.equal(pruned[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(dense[name], weight) for name, weight in pruner.weights.items())


def test_a_state_that_is_refused_inside_dense_leaves_the_dense_model():
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(3))
    state = {**pruner.state_dict(), "every": 3}
    with pruner.dense():
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match="every=3"):
            pruner.load_state_dict(state)
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_an_interrupt_while_the_weights_are_swapped_loses_nothing(monkeypatch):
    model, optimizer, pruner = attached()
    with pruner.dense():
        before = [p.detach().clone() for p in model.parameters()]
    calls = iter([None, KeyboardInterrupt()])
    swap_in_dense = regrow.core.weights.Weight.swap_in_dense

    def interrupted(self):
        if next(calls, None) is not None:
            raise KeyboardInterrupt
        swap_in_dense(self)

    monkeypatch.setattr(regrow.core.weights.Weight, "swap_in_dense", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    monkeypatch.undo()
    pruner.restore()
    with pruner.dense():
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class Replacing(torch.optim.Optimizer):
    """Puts new storage in place of updating the weights where they are."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def step(self):
        for p in self.param_groups[0]["params"]:
            p.data = p.data - 0.1 * p.grad


def test_the_masking_of_other_devices_gives_the_same_bits(monkeypatch):
    def run():
        model, optimizer, pruner = attached()
        losses = train(model, optimizer, batches(5))
        with pruner.dense():
            return losses, [p.detach().clone() for p in model.parameters()]

    losses, weights = run()
    monkeypatch.setattr(regrow.core.weights, "bit_view", lambda tensor: bits(in_memory_order(tensor)))
    monkeypatch.setattr(regrow.core.select, "uses_numpy", lambda score: False)
    again, same = run()
    assert losses == again
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


def test_an_optimizer_that_replaces_storage_trains_all_the_same():
    for method in (regrow.DPF, lambda m, o, sparsity: regrow.Fixed(m, o, {"0.weight": torch.rand(8, 1, 3, 3) > 0.5})):
        models = [small_cnn(), small_cnn()]
        optimizers = [Replacing(models[0].parameters()), torch.optim.SGD(models[1].parameters(), lr=0.1)]
        for model, optimizer in zip(models, optimizers, strict=True):
            torch.manual_seed(0)
            method(model, optimizer, sparsity=0.5)
            train(model, optimizer, batches(5))
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*(m.parameters() for m in models), strict=True))
        assert int((models[0][0].weight == 0).sum()) > 0


class Twice(torch.optim.SGD):
    """A subclass whose step calls that of its parent: torch runs the hooks of both."""

    def step(self, closure=None):
        return super().step(closure)


def test_a_step_that_calls_its_parent_s_counts_once():
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)  # from now on torch hooks SGD.step itself as well
    model = small_cnn()
    optimizer = Twice(model.parameters(), lr=0.05, momentum=0.9)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5)
    train(model, optimizer, batches(5))
    assert pruner.step == 5


class Afterwards(torch.optim.SGD):
    """A subclass that changes the weights after its parent's step."""

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.mul_(0.99)
        return loss


@pytest.mark.parametrize("closures", [False, True])
def test_a_step_inside_a_step_acts_on_the_dense_weights_and_adds_decay_once(closures):
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)  # from now on torch hooks SGD.step itself as well
    model, plain = small_cnn(), small_cnn()
    optimizer = Afterwards(model.parameters(), lr=0.05, weight_decay=0.1)
    other = torch.optim.SGD(plain.parameters(), lr=0.05, weight_decay=0.1)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=100, weight_decay_at="pruned")
    twin = regrow.DPF(plain, other, sparsity=0.5, every=100, weight_decay_at="pruned")
    for batch in batches(4):
        step(model, optimizer, batch, closure=closures)
        train(plain, other, [batch])
        with twin.dense(), torch.no_grad():
            for p in plain.parameters():
                p.mul_(0.99)
    assert pruner.step == twin.step == 4
    with pruner.dense(), twin.dense():
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_reading_stats_state_and_masks_changes_nothing():
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(3))
    with pruner.dense():
        whole = copy.deepcopy(model.state_dict())
        pruner.stats(), pruner.state_dict(), pruner.masks
        with pruner.dense():
            pass
        assert all(torch.equal(whole[name], tensor) for name, tensor in model.state_dict().items())
    optimizer.register_step_pre_hook(lambda *_: pruner.stats() and None)
    twin, other, quiet = attached()
    train(twin, other, batches(3))
    assert train(model, optimizer, batches(6, seed=3)) == train(twin, other, batches(6, seed=3))
    assert pruner.stats() == quiet.stats()


def test_an_unfrozen_state_thaws_a_frozen_pruner():
    model, optimizer, pruner = attached()
    train(model, optimizer, batches(3))
    states = snapshot(model, optimizer, pruner)
    expected = train(model, optimizer, batches(6, seed=8))
    pruner.freeze()
    reload(states, model, optimizer, pruner)
    assert train(model, optimizer, batches(6, seed=8)) == expected
    assert pruner.stats().delta > 0


def test_a_backward_pass_of_a_loss_under_other_weights_is_an_error():
    model, _, pruner = attached()
    x, y = next(iter(batches(1)))
    with pruner.dense():
        loss = nn.functional.cross_entropy(model(x), y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_pruner_is_not_copied():
    _, _, pruner = attached()
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="belongs to its optimizer"):
            copier(pruner)


def test_decay_at_the_pruned_weights_takes_one_pruner_per_optimizer_and_is_given_back():
    model = small_cnn()
    optimizer = sgd(model)
    first = regrow.DPF(model, optimizer, sparsity=0.5, targets="0", weight_decay_at="pruned")
    with pytest.raises(ValueError, match="changes a whole optimizer"):
        regrow.DPF(model, optimizer, sparsity=0.5, targets="3")
    optimizer.param_groups[0]["momentum"] = "broken"
    with pytest.raises(TypeError):
        train(model, optimizer, batches(1))
    first.restore()
    assert optimizer.param_groups[0]["weight_decay"] == 1e-3


@pytest.mark.parametrize("value", [-0.3, 1.5, float("nan")])
def test_a_schedule_that_leaves_its_range_is_named_with_the_step(value):
    model, optimizer, _ = attached(sparsity=lambda t: 0.5 if t < 2 else value)
    with pytest.raises(ValueError, match=r"the schedule's value at step 2 must be in \[0, 1\)"):
        train(model, optimizer, batches(3))


def test_a_default_device_does_not_matter():
    model, optimizer, _ = attached()
    data = list(batches(4))
    with torch.device("meta"):
        train(model, optimizer, iter(data))


def test_storage_with_gaps_is_refused_when_it_appears():
    model, optimizer, _ = attached()
    model[6].weight.data = torch.zeros(20, 216)[:, ::2]
    with pytest.raises(ValueError, match=r"6\.weight has overlapping or padded storage"):
        train(model, optimizer, batches(1))
