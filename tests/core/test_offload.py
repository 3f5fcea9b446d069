"""Dense weights that wait on the CPU: the same bits, whatever happens in between."""

import copy

import pytest
import torch

import regrow
from tests.core.nets import batches, sgd, small_cnn, train


def attached(model, **options):
    optimizer = sgd(model)
    return optimizer, regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=20, initial=0.3), every=4, **options)


@pytest.mark.parametrize("channels_last", [False, True])
def test_an_offloaded_training_has_the_same_bits(channels_last):
    models = [small_cnn(), small_cnn()]
    if channels_last:
        models = [model.to(memory_format=torch.channels_last) for model in models]
    (plain, pruner), (other, offloaded) = (attached(model, offload=k == 1) for k, model in enumerate(models))
    for data in (list(batches(15)), list(batches(15, seed=2))):
        for model, optimizer in zip(models, (plain, other), strict=True):
            train(model, optimizer, iter(data))
        assert all(torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in models), strict=True))
        assert all(torch.equal(pruner.weights[name], offloaded.weights[name]) for name in pruner.weights)
        with pruner.dense(), offloaded.dense():
            assert all(torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in models), strict=True))
        assert pruner.stats() == offloaded.stats()


def test_a_state_is_loaded_with_offload_and_without():
    model = small_cnn()
    optimizer, pruner = attached(model)
    train(model, optimizer, batches(10))
    again = small_cnn(seed=1)
    other, offloaded = attached(again, offload=True)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    offloaded.load_state_dict(pruner.state_dict())
    for m, o in ((model, optimizer), (again, other)):
        train(m, o, batches(10, seed=3))
    assert all(torch.equal(pruner.weights[name], offloaded.weights[name]) for name in pruner.weights)


def test_a_step_that_fails_loses_nothing():
    model = small_cnn()
    optimizer, pruner = attached(model, offload=True)
    train(model, optimizer, batches(6))
    before = {name: weight.clone() for name, weight in pruner.weights.items()}
    shown = model[0].weight.detach().clone()

    def fail(*_):
        raise InterruptedError

    hook = optimizer.register_step_pre_hook(fail)
    with pytest.raises(InterruptedError):
        train(model, optimizer, batches(1))
    hook.remove()
    pruner.restore()
    assert torch.equal(model[0].weight, shown)
    assert all(torch.equal(weight, before[name]) for name, weight in pruner.weights.items())


def test_frozen_weights_are_dropped():
    model = small_cnn()
    optimizer, pruner = attached(model, offload=True)
    train(model, optimizer, batches(6))
    pruner.freeze()
    train(model, optimizer, batches(6))
    assert torch.equal(pruner.weights["0.weight"], model[0].weight)
    assert bool((model[0].weight[~pruner.masks["0.weight"]] == 0).all())


def test_a_state_saved_while_the_model_is_dense_is_the_same():
    model = small_cnn()
    optimizer, pruner = attached(model, offload=True)
    train(model, optimizer, batches(10))
    before = pruner.state_dict()["error"]
    with pruner.dense():
        inside = pruner.state_dict()["error"]
    assert all(torch.equal(before[name], inside[name]) and before[name].any() for name in before)


def test_the_quality_of_the_pruning_is_the_same_while_the_model_is_dense():
    model = small_cnn()
    optimizer, pruner = attached(model, offload=True)
    train(model, optimizer, batches(10))
    outside = pruner.stats()
    with pruner.dense():
        assert pruner.stats() == outside
    assert outside.delta > 0
