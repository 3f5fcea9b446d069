"""Weights sharded by FSDP2 over real gloo processes: masks and trainings are those of one process."""

import copy
import random
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import regrow
from regrow.core.bits import uniform
from regrow.core.budget import keep_largest, sum_by_rows
from regrow.core.distributed import shard_group
from tests.core.nets import batches, sgd, small_cnn, train
from tests.train.together import run_together

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def in_group(job, *arguments):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "all of")
    dist.init_process_group("gloo")
    job(*arguments)
    dist.barrier()
    dist.destroy_process_group()


def alone():
    """Return a group of this process alone, in which a reference can step without waiting for others."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


def network(draw: random.Random) -> nn.Sequential:
    """Return layers of random shapes, with many equal weights in half the cases."""
    layers: list[nn.Module] = []
    for _ in range(draw.randint(1, 4)):
        rows, columns = draw.randint(1, 9), 4 * draw.randint(1, 3)
        side = draw.choice([0, 1, 3])
        layers.append(nn.Conv2d(columns, rows, side) if side else nn.Linear(columns, rows))
    model = nn.Sequential(*layers)
    generator, few = torch.Generator().manual_seed(draw.randrange(10**6)), draw.random() < 0.5
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_((values * 2).round() / 2 if few else values)
    return model.to(draw.choice(DTYPES))


def random_choices(draw: random.Random) -> dict:
    unit = draw.choice(["weight", "weight", "filter", "2:4"])
    scope = draw.choice(["global", "layer", "er", "erk", "redistributed"])
    sparsity = 0.5 if unit == "2:4" else draw.uniform(0, 0.9)
    return {"unit": unit, "scope": scope, "sparsity": sparsity, "include_last": True}


def compare_masks(cases, seed):
    for case in range(cases):
        draw = random.Random(f"{seed} {case}")
        model, choices = network(draw), random_choices(draw)
        if len(model) > 1 and choices["unit"] != "2:4" and draw.random() < 0.5:
            choices["sparsity"] = {"0": draw.uniform(0, 0.9), "*": choices["sparsity"]}
        sharded = copy.deepcopy(model)
        fully_shard(sharded)
        whole = regrow.DPF(model, sgd(model), **choices)
        parts = regrow.DPF(sharded, sgd(sharded), **choices)
        for name, target in parts.targets.items():
            expected = target.part(whole.masks[name])
            assert torch.equal(parts.masks[name], expected), (case, name, choices)
        assert parts.sparsity == whole.sparsity
        assert parts.stats().layers == whole.stats().layers
        assert parts.flips == whole.flips


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_masks_of_shards_are_those_of_the_whole_to_the_element(size):
    run_together(size, in_group, compare_masks, 40, random.randrange(10**6))


METHODS = {
    "DPF": {"sparsity": regrow.Cubic(0.9, end=40, initial=0.3), "every": 4},
    "Incremental": {"sparsity": regrow.Cubic(0.8, end=40), "every": 8},
    "OneShot": {"sparsity": 0.8, "at": 20},
    "SNIP": {"sparsity": 0.8},
    "SFP": {"sparsity": 0.4, "every": 10},
    "SET": {"sparsity": 0.8, "every": 10, "total_steps": 50},
    "RigL": {"sparsity": 0.8, "every": 10, "total_steps": 60},
    "DSR": {"sparsity": 0.8, "every": 2, "total_steps": 100, "threshold": 0.05},
    "DeepR": {"sparsity": 0.8, "total_steps": 50},
    "SparseMomentum": {"sparsity": 0.8, "every": 10, "total_steps": 50},
    "Static": {"sparsity": 0.8},
    "ACDC": {"sparsity": 0.8, "total_steps": 50},
    "GraNet": {"sparsity": 0.8, "every": 6, "total_steps": 60},
    "DSD": {"sparsity": 0.8, "total_steps": 60},
    "SRSTE": {"unit": "2:4"},
    "DNS": {"sparsity": regrow.Cubic(0.9, end=40, initial=0.3), "gamma": 0.05},
    "Dense": {},
}
CHOICES = {
    "layer": {"scope": "layer"},
    "filter": {"unit": "filter", "sparsity": 0.5, "channels": True},
    "2:4": {"unit": "2:4", "sparsity": 0.5},
    "redistributed with a floor": {"scope": "redistributed", "floor": 3},
    "decay at pruned": {"weight_decay_at": "pruned"},
    "steady": {"stabilize": True, "settle": 0.2, "total_steps": 50, "unit": "filter", "sparsity": 0.6},
    "offload": {"offload": True},
}


def same_training(method, options, wrap):
    """Train 50 steps in float64 on shares of each batch and, in this process alone, on all of it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = small_cnn(norm=False).double()
    parallel = wrap(copy.deepcopy(model))
    reference, optimizer = sgd(model), sgd(parallel)
    pruner = getattr(regrow, method)(parallel, optimizer, **options)
    whole = getattr(regrow, method)(model, reference, **options, process_group=alone())
    data = [(x.double(), y) for x, y in batches(50)]
    train(model, reference, iter(data))
    train(parallel, optimizer, ((x[rank::size], y[rank::size]) for x, y in data))
    for name, target in pruner.targets.items():
        assert torch.equal(pruner.masks[name], target.part(whole.masks[name])), (method, name)
        found, expected = pruner.weights[name], target.part(whole.weights[name])
        assert torch.allclose(found, expected, rtol=0, atol=1e-9), (method, name)
    mine, theirs = pruner.stats(), whole.stats()
    assert (mine.sparsity, mine.flips, mine.layers) == (theirs.sparsity, theirs.flips, theirs.layers)
    assert abs(mine.delta - theirs.delta) < 1e-9
    with pruner.dense():
        assert abs(pruner.stats().delta - theirs.delta) < 1e-9


def sharded(model):
    fully_shard(model)
    return model


def compare_trainings(names, wrap):
    for name in names:
        method = name if name in METHODS else "DPF"
        same_training(method, METHODS[method] | CHOICES.get(name, {}), wrap)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_sharded_training_is_that_of_one_process_with_every_method(size):
    run_together(size, in_group, compare_trainings, [*METHODS, *CHOICES], sharded)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_replicated_training_is_that_of_one_process_with_every_method(size):
    run_together(size, in_group, compare_trainings, [*METHODS, *CHOICES], DistributedDataParallel)


def be_refused():
    mesh = init_device_mesh("cpu", (2,))
    replicated = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    for layer in replicated:
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Replicate()]))
    with pytest.raises(TypeError, match=r"0\.weight is placed as .*sharded by rows"):
        regrow.DPF(replicated, sgd(replicated), sparsity=0.5)
    mixed = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    fully_shard(mixed[0])
    with pytest.raises(TypeError, match=r"0\.weight and 1\.weight are not sharded over the same processes"):
        regrow.DPF(mixed, sgd(mixed), sparsity=0.5)
    model = sharded(nn.Sequential(nn.ConvTranspose2d(4, 4, 3), nn.Conv2d(4, 4, 3)))
    with pytest.raises(ValueError, match=r"unit='filter' needs whole filters, but the sharded rows of 0\.weight"):
        regrow.DPF(model, sgd(model), sparsity=0.5, unit="filter")
    with pytest.raises(ValueError, match="criterion='fpgm' compares all filters"):
        regrow.DPF(model, sgd(model), sparsity=0.5, unit="filter", criterion="fpgm", targets="1")
    with pytest.raises(ValueError, match="loss= needs whole weights"):
        regrow.SNIP(model, sgd(model), sparsity=0.5, loss=lambda: model(torch.ones(1, 4, 8, 8)).sum())
    with pytest.raises(TypeError, match="a compressor needs whole tensors"):
        regrow.Feedback(model, sgd(model), compressor="sign")
    with pytest.raises(TypeError, match="is sharded, but LotteryTicket needs whole weights"):
        regrow.LotteryTicket(model, 0.5)


def test_unsupported_sharding_is_refused_with_a_reason():
    run_together(2, in_group, be_refused)


def find_nan():
    model = small_cnn(norm=False)
    with torch.no_grad():
        model[2].weight[-1] = float("nan")  # in the last process
    model = sharded(model)
    with pytest.raises(ValueError, match="contains NaN, which cannot be ordered"):
        regrow.DPF(model, sgd(model), sparsity=0.5)


def test_a_nan_in_one_shard_is_an_error_in_every_process():
    run_together(2, in_group, find_nan)


def look_inside():
    model = sharded(small_cnn(norm=False))
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.9, every=4)
    train(model, optimizer, batches(5))
    x, _ = next(batches(1))
    pruned = model(x)
    with pruner.dense():
        assert not torch.equal(model(x), pruned)
    assert torch.equal(model(x), pruned)
    whole = model.state_dict()["0.weight"].full_tensor()
    assert int((whole == 0).sum()) > 0
    pruner.freeze()
    train(model, optimizer, batches(2))
    pruner.detach()


def test_the_dense_weights_can_be_looked_at_and_the_model_is_pruned_again():
    run_together(2, in_group, look_inside)


def seams():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    tensor = distribute_tensor(whole, mesh, [Shard(0)])
    assert isinstance(tensor, DTensor)
    shards, single = shard_group([("w", tensor)]), shard_group([("w", whole)])
    part = tensor.to_local()
    target = regrow.core.targets.Target("w", tensor)
    assert torch.equal(shards.all_rows(part), whole)
    assert shards.sizes([part]) == [35]
    assert sum_by_rows(part, shards) == sum_by_rows(whole, single)
    drawn = uniform(part, seed=0, layer="w", step=3, offset=target.offset)
    assert torch.equal(drawn, target.part(uniform(whole, seed=0, layer="w", step=3)))
    among = whole > 0
    kept = keep_largest("w", part, target.part(among), 4, shards)
    assert torch.equal(kept, target.part(keep_largest("w", whole, among, 4, single)))


@pytest.mark.parametrize("size", [2, 4])
def test_counts_and_sizes_over_shards_are_those_of_the_whole_tensor(size):
    run_together(size, in_group, seams)
