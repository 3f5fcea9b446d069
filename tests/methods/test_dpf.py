"""Bounded gradients of dead filters, and a rest at the end of training."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import regrow
from tests.core.nets import batches, sgd, small_cnn, train


def with_dead_filters(stabilize):
    model = small_cnn()
    with torch.no_grad():
        model[0].weight[:3] *= 1e-3  # these filters are pruned as a whole
    optimizer = sgd(model)
    return model, optimizer, regrow.DPF(model, optimizer, sparsity=0.6, every=1000, stabilize=stabilize)


def gradients_seen_by_the_optimizer(stabilize):
    model, optimizer, _ = with_dead_filters(stabilize)
    x, y = next(iter(batches(1)))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    return torch.linalg.vector_norm(model[0].weight.grad.flatten(1), dim=1)


def test_a_dead_filter_s_gradient_is_bounded_by_the_median_of_the_live_ones():
    plain, bounded = gradients_seen_by_the_optimizer(False), gradients_seen_by_the_optimizer(True)
    median = plain[3:].median()
    assert (plain[:3] > 5 * median).all(), "batch norm amplifies what a dead filter gets"
    assert torch.allclose(bounded[:3], median.expand(3))
    assert torch.equal(bounded[3:], plain[3:])


def test_without_dead_filters_nothing_changes_bit_for_bit():
    models = [small_cnn(), small_cnn()]
    for model, stabilize in zip(models, (False, True), strict=True):
        optimizer = sgd(model)
        pruner = regrow.DPF(model, optimizer, sparsity=0.3, every=4, stabilize=stabilize)
        train(model, optimizer, batches(40))
        assert all(mask.flatten(1).any(dim=1).all() for mask in pruner.masks.values())
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_the_feedback_of_dead_filters_stays_alive():
    model, optimizer, pruner = with_dead_filters(True)
    with pruner.dense():
        before = model[0].weight[:3].clone()
    train(model, optimizer, batches(1))
    with pruner.dense():
        assert not torch.equal(model[0].weight[:3], before)


def test_the_mask_is_fixed_at_the_end_and_pruned_weights_are_dropped():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.8, every=2, settle=0.25, total_steps=40)
    train(model, optimizer, batches(30))
    resting = pruner.masks.clone()
    assert pruner.flips > 0
    train(model, optimizer, batches(10, seed=5))
    assert all(torch.equal(resting[name], mask) for name, mask in pruner.masks.items())
    assert pruner.stats().delta == 0


def test_settle_needs_total_steps_and_a_fraction():
    model = small_cnn()
    with pytest.raises(ValueError, match=r"DPF needs total_steps="):
        regrow.DPF(model, sgd(model), sparsity=0.8, settle=0.1)
    with pytest.raises(ValueError, match=r"settle must be a fraction in \[0, 1\], got 10"):
        regrow.DPF(model, sgd(model), sparsity=0.8, settle=10, total_steps=100)


def test_stabilize_refuses_filters_that_are_split_over_processes_before_anything_changes():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.ConvTranspose2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        before = [weight.full_tensor().clone() for weight in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=r"stabilize=True needs whole filters, but the sharded rows of 0\.weight"):
            regrow.DPF(model, optimizer, sparsity=0.5, stabilize=True)
        assert all(torch.equal(old, new.full_tensor()) for old, new in zip(before, model.parameters(), strict=True))
        regrow.DPF(model, optimizer, sparsity=0.5)  # no other pruner owns the weights
    finally:
        dist.destroy_process_group()
