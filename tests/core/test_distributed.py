"""Two gloo processes: the same masks without communication, and disagreement found at the first step."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import regrow
from regrow.core.distributed import RankMismatchError
from tests.core.nets import batches, sgd, small_cnn, train
from tests.train.together import run_together


def run_on_two(job, tmp_path):
    run_together(2, _save, job, tmp_path)
    return [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _save(job, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.save(job(rank), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def train_under_ddp(rank):
    model = DistributedDataParallel(small_cnn(seed=rank))
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=20, initial=0.3), every=4)
    train(model, optimizer, batches(30, seed=rank))
    return {**pruner.state_dict(), "model": model.module.state_dict()}


def test_ranks_choose_the_same_masks_without_communication(tmp_path):
    first, second = run_on_two(train_under_ddp, tmp_path)
    assert list(first["masks"]) == ["0.weight", "3.weight", "6.weight"]
    assert all(torch.equal(first["masks"][name], second["masks"][name]) for name in first["masks"])
    assert all(torch.equal(first["error"][name], second["error"][name]) for name in first["error"])
    assert torch.equal(first["model"]["0.weight"], second["model"]["0.weight"])


def attach_before_ddp(rank):
    model = small_cnn(seed=rank)
    optimizer = sgd(model)
    regrow.DPF(model, optimizer, sparsity=0.5)
    parallel = DistributedDataParallel(model)
    warnings.simplefilter("ignore")  # rank 1 also notices that its weights were overwritten
    with pytest.raises(RuntimeError, match="Attach the pruner after DistributedDataParallel") as caught:
        train(parallel, optimizer, batches(2))
    return str(caught.value)


def test_differently_initialized_ranks_raise_an_error_at_the_first_step(tmp_path):
    assert "different masks" in run_on_two(attach_before_ddp, tmp_path)[1]


def drift_apart(rank):
    model = DistributedDataParallel(small_cnn())
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=4)
    train(model, optimizer, batches(6))
    if rank:
        with pruner.dense(), torch.no_grad():
            model.module[0].weight.mul_(-1)[0, 0, 0, 0] = 7.0
    with pytest.raises(RankMismatchError, match="at step 8 the ranks computed different masks") as caught:
        train(model, optimizer, batches(6))
    return str(caught.value)


def test_masks_that_come_to_differ_stop_all_ranks_with_an_explanation(tmp_path):
    first, second = run_on_two(drift_apart, tmp_path)
    assert first == second


def attach_alone(rank):
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    taken = 0
    for attach in (
        lambda m, o: regrow.DPF(m, o, sparsity=0.5, process_group=alone),
        lambda m, o: regrow.Fixed(m, o, {"0.weight": m[0].weight > 0}, process_group=alone),
        lambda m, o: regrow.Dense(m, o, process_group=alone),
    ):
        model = nn.Sequential(nn.Linear(4 + rank, 3), nn.Linear(3, 2))
        optimizer = sgd(model)
        pruner = attach(model, optimizer)
        model(torch.randn(2, 4 + rank)).sum().backward()
        optimizer.step()
        taken += pruner.step
    return taken


def test_ranks_that_train_different_models_each_pass_a_process_group(tmp_path):
    assert run_on_two(attach_alone, tmp_path) == [3, 3]
