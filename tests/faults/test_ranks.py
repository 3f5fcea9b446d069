"""Real processes whose pruners are not the same: one clear error on every rank, no hang, no wrong sparsity."""

import copy
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import regrow
from regrow.core.distributed import RankMismatchError
from tests.core.nets import batches, sgd, small_cnn, train
from tests.train.together import run_together, start_together

RAMP = regrow.Cubic(0.9, end=20)
SAME = {"sparsity": 0.5, "every": 4}
# What one rank has, what the other has, and what the error of both says.
DIFFERENT = [
    ({"every": 4}, {"every": 8}, "every is 4 on rank 0 and 8 on rank 1"),
    ({"sparsity": 0.5}, {"sparsity": 0.6}, r"sparsity is Constant\(final=0.5\) on rank 0 and Constant\(final=0.6\) on"),
    (
        {"sparsity": 0.5},
        {"sparsity": RAMP},
        r"sparsity is Constant\(final=0.5\) on rank 0 and Cubic\(final=0.9, end=20",
    ),
    ({"scope": "global"}, {"scope": "layer"}, "scope is global on rank 0 and layer on rank 1"),
    ({"unit": "weight"}, {"unit": "filter"}, "unit is weight on rank 0 and filter on rank 1"),
    ({"floor": 0}, {"floor": 1}, "floor is 0 on rank 0 and 1 on rank 1"),
    ({"targets": ["0", "2"]}, {"targets": "0"}, "target 2.weight is .* on rank 0 and missing on rank 1"),
    ({"targets": "0"}, {"targets": "2"}, "target 0.weight is .* and missing on rank 1; target 2.weight is missing"),
]


def in_group(job, *arguments, seconds=60.0):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    job(*arguments)
    dist.barrier()
    dist.destroy_process_group()


def sharded(model):
    fully_shard(model)
    return model


def attach_differently(wrap):
    for options in DIFFERENT:
        *both, expected = options
        model = wrap(small_cnn(norm=False))
        with pytest.raises(RankMismatchError, match=f"the ranks have different pruners: .*{expected}"):
            regrow.DPF(model, sgd(model), **(SAME | both[dist.get_rank()]))
    model = wrap(small_cnn(norm=False))
    method = [regrow.DPF, regrow.Incremental][dist.get_rank()]
    with pytest.raises(RankMismatchError, match="method is DPF on rank 0 and Incremental on rank 1"):
        method(model, sgd(model), **SAME)
    model = wrap(small_cnn(norm=False))
    with pytest.raises(RankMismatchError, match="seed is 0 on rank 0 and 1 on rank 1"):
        regrow.SET(model, sgd(model), sparsity=0.5, every=4, total_steps=20, seed=dist.get_rank())
    model = wrap(small_cnn(norm=False))
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, **SAME)  # the ranks still understand each other
    train(model, optimizer, batches(5))
    assert pruner.step == 5


@pytest.mark.parametrize("wrap", [DistributedDataParallel, sharded])
def test_ranks_with_different_options_raise_an_error_that_names_the_difference_when_they_attach(wrap):
    run_together(2, in_group, attach_differently, wrap)


def resume_differently(wrap):
    model = wrap(small_cnn(norm=False))
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, **SAME)
    train(model, optimizer, batches(3))
    saved = [copy.deepcopy((model.state_dict(), pruner.state_dict()))]
    train(model, optimizer, batches(1))
    saved.append((model.state_dict(), pruner.state_dict()))
    weights, state = saved[dist.get_rank()]
    model.load_state_dict(weights)
    pruner.load_state_dict(state)
    with pytest.raises(RankMismatchError, match="step is 3 on rank 0 and 4 on rank 1"):
        train(model, optimizer, batches(1))


@pytest.mark.parametrize("wrap", [DistributedDataParallel, sharded])
def test_ranks_that_resume_from_different_steps_raise_an_error_at_the_next_step(wrap):
    run_together(2, in_group, resume_differently, wrap)


def attach_on_rank_0(wrap):
    model = wrap(small_cnn(norm=False))
    optimizer = sgd(model)
    if dist.get_rank():
        # gloo notices that the other rank has ended; with NCCL, torchrun would end this one.
        with pytest.raises(RuntimeError, match=r"(?i)closed by peer|connection reset|timed out"):
            train(model, optimizer, batches(2))
        return
    with pytest.raises(RankMismatchError, match=r"rank 1 has not attached a pruner .* within 3 seconds"):
        regrow.DPF(model, optimizer, **SAME)


def leave_without_goodbye(job, *arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=3))
    job(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [DistributedDataParallel, sharded])
def test_a_rank_without_a_pruner_is_named_after_the_timeout_of_the_process_group(wrap):
    run_together(2, leave_without_goodbye, attach_on_rank_0, wrap)


def attach_late():
    if dist.get_rank():
        time.sleep(0.5)
    model = DistributedDataParallel(small_cnn(norm=False))
    if dist.get_rank():
        time.sleep(0.5)
    regrow.DPF(model, sgd(model), **SAME)


def test_ranks_wait_for_a_late_rank():
    run_together(2, in_group, attach_late)


def attach_on_two_of_three():
    """Rank 0, which serves the store, ends first."""
    model = small_cnn(norm=False)
    if dist.get_rank() == 2:
        time.sleep(6)
        return
    time.sleep(dist.get_rank())
    with pytest.raises(RankMismatchError, match="has not attached a pruner"):
        regrow.DPF(model, sgd(model), **SAME)


@pytest.mark.slow
def test_ranks_get_the_same_error_when_the_store_has_ended_with_another_rank():
    processes = start_together(3, leave_without_goodbye, attach_on_two_of_three)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
