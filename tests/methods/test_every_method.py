"""What every method must do: resume bit for bit, agree between processes, say nothing new to the training loop."""

import io
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import regrow
from tests.methods.every_method import METHODS, TOTAL, attach
from tests.methods.networks import Training, steps

TRAINING = Training(convs=(5, 6), hidden=(7,), momentum=0.9, decay=0.001, seed=3)


def saved(*parts) -> list:
    """Take states through a file that is read without running code."""
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("stop", [1, 5])
@pytest.mark.parametrize("method", list(METHODS))
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(method, stop):
    whole = TRAINING.model()
    optimizer = TRAINING.optimizer(whole)
    pruner = attach(method, whole, optimizer)
    for t in steps(whole, optimizer, TOTAL):
        if t == stop:
            states = saved(whole, optimizer, pruner)
    resumed = Training(**{**TRAINING.__dict__, "seed": 99}).model()
    resumed_optimizer = TRAINING.optimizer(resumed)
    parts = resumed, resumed_optimizer, attach(method, resumed, resumed_optimizer)
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
    list(steps(resumed, resumed_optimizer, TOTAL, start=stop))
    ends = zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in ends)
    assert all(torch.equal(mask, parts[2].masks[name]) for name, mask in pruner.masks.items())
    assert pruner.stats() == parts[2].stats()


def test_a_state_is_refused_if_the_models_weights_were_not_loaded_first():
    model = TRAINING.model()
    optimizer = TRAINING.optimizer(model)
    pruner = attach("SET", model, optimizer)
    list(steps(model, optimizer, 5))
    saved_model, saved_pruner = saved(model, pruner)
    again = TRAINING.model()
    again.load_state_dict(saved_model)
    late = attach("SET", again, TRAINING.optimizer(again))
    with pytest.raises(ValueError, match="load the model's state after attaching the pruner"):
        late.load_state_dict(saved_pruner)


def run_rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    states = {}
    for method in METHODS:
        model = DistributedDataParallel(Training(**{**TRAINING.__dict__, "seed": rank}).model())
        optimizer = TRAINING.optimizer(model)
        pruner = attach(method, model, optimizer)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(TOTAL):
            x, y = torch.randn(4, 2, 4, 4, generator=generator), torch.randint(0, 3, (4,), generator=generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        states[method] = pruner.state_dict()
        x, y = torch.randn(4, 2, 4, 4, generator=generator), torch.randint(0, 3, (4,), generator=generator)
    scored = DistributedDataParallel(TRAINING.model())
    loss = lambda: nn.functional.cross_entropy(scored(x), y)  # noqa: E731
    optimizer = TRAINING.optimizer(scored)
    pruner = regrow.SNIP(scored, optimizer, sparsity=0.8, loss=loss)
    loss().backward()
    optimizer.step()  # where ranks that disagree are told so
    states["SNIP with a loss"] = pruner.state_dict()
    torch.save(states, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_that_see_different_batches_hold_the_same_masks(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run_rank, (port, str(tmp_path)), nprocs=2)
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert list(one) == [*METHODS, "SNIP with a loss"]
    for method, state in one.items():
        assert all(torch.equal(bits, other[method]["masks"][name]) for name, bits in state["masks"].items()), method
        cls = getattr(regrow, method.split()[0])
        assert cls.ends_dense or not cls.has_mask or 0 < state["requested"] < 1
