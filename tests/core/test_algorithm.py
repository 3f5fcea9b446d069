"""DPF is Algorithm 1, bit for bit."""

import copy

import pytest
import torch

import regrow
from tests.core.nets import batches, sgd, small_cnn, train
from tests.core.reference import algorithm_1

TARGETS = ["0.weight", "3.weight", "6.weight"]


def adamw(params):
    return torch.optim.AdamW(params, lr=2e-3, weight_decay=1e-2)


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("sparsity", [0.8, regrow.Cubic(0.9, end=150), regrow.Cubic(0.9, end=150, every=25)])
def test_weights_masks_and_losses_equal_the_literal_algorithm(make_optimizer, scope, sparsity):
    model = small_cnn()
    schedule = sparsity if callable(sparsity) else lambda t: sparsity
    reference = algorithm_1(
        copy.deepcopy(model), TARGETS, make_optimizer, schedule, batches(200), per_layer=scope == "layer"
    )
    optimizer = make_optimizer(list(model.parameters()))
    pruner = regrow.DPF(model, optimizer, sparsity=sparsity, every=16, scope=scope)
    for step, ((loss, w, m), (x, y)) in enumerate(zip(reference, batches(200), strict=True)):
        assert all(torch.equal(pruner.masks[name], m[name]) for name in TARGETS), step
        optimizer.zero_grad()
        mine = torch.nn.functional.cross_entropy(model(x), y)
        mine.backward()
        optimizer.step()
        assert mine.item() == loss, step
        with pruner.dense():
            assert all(torch.equal(p, w[name]) for name, p in model.named_parameters()), step
    assert pruner.step == 200


def test_at_sparsity_zero_training_is_unchanged():
    plain, pruned = small_cnn(), small_cnn()
    optimizer = sgd(pruned)
    regrow.DPF(pruned, optimizer, sparsity=0.0)
    assert train(plain, sgd(plain), batches(100)) == train(pruned, optimizer, batches(100))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), pruned.parameters(), strict=True))


def test_the_model_always_holds_the_pruned_weights():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.7)
    total = sum(dict(model.named_parameters())[name].numel() for name in TARGETS)
    for x, y in batches(20):
        zeros = sum(int((dict(model.named_parameters())[name] == 0).sum()) for name in TARGETS)
        assert zeros == round(0.7 * total)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert pruner.sparsity == pytest.approx(0.7, abs=1 / total)


def test_a_pruned_weight_grows_back_and_its_gradient_is_not_masked():
    layer = torch.nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.1, 1.0, 2.0, 3.0]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    pruner = regrow.DPF(layer, optimizer, sparsity=0.5, every=2, include_last=True)
    assert layer.weight.tolist() == [[0.0, 0.0, 2.0, 3.0]]
    for _ in range(2):
        layer.weight.grad = torch.tensor([[-2.0, 0.0, 0.0, 0.0]])
        optimizer.step()
    with pruner.dense():
        assert layer.weight.tolist() == [[pytest.approx(4.1), 1.0, 2.0, 3.0]]
    assert layer.weight.tolist() == [[pytest.approx(4.1), 0.0, 0.0, 3.0]]
