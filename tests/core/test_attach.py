"""What a pruner can be attached to, and what is refused with an error that says what to do."""

import gc
import inspect

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import regrow
from regrow.core.targets import find_targets
from tests.core.nets import batches, sgd, small_cnn, train


def test_a_second_pruner_is_refused_through_another_optimizer_too():
    model = small_cnn()
    first = regrow.DPF(model, sgd(model), sparsity=0.5, targets=["0", "3"])
    with pytest.raises(ValueError, match=r"3\.weight is already pruned by a DPF: detach\(\) that one first"):
        regrow.Fixed(model, sgd(model), {"3.weight": first.masks["3.weight"]})
    assert regrow.DPF(model, sgd(model), sparsity=0.5, targets="6").sparsity > 0  # other weights are free
    first.detach()
    assert regrow.DPF(model, sgd(model), sparsity=0.5, targets=["0", "3"]).step == 0


def test_a_pruner_of_a_deleted_optimizer_does_not_block_a_new_one():
    model = small_cnn()
    gc.disable()  # a pruner and its optimizer hold each other, and die when they are collected
    try:
        for _ in range(3):
            optimizer = sgd(model)
            regrow.DPF(model, optimizer, sparsity=0.5)
            train(model, optimizer, batches(1))
            del optimizer
    finally:
        gc.enable()


def test_another_pruner_can_be_attached_after_a_failed_attempt():
    model = small_cnn()
    optimizer = sgd(model)
    with torch.no_grad():
        model[3].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"3\.weight contains NaN") as kept:
        regrow.DPF(model, optimizer, sparsity=0.5)
    with torch.no_grad():
        model[3].weight[0, 0, 0, 0] = 0
    assert regrow.DPF(model, optimizer, sparsity=0.5).step == 0
    assert kept


@pytest.fixture
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # FSDP1 is deprecated, and warns about the CPU
@pytest.mark.parametrize("use_orig_params", [False, True])
def test_flat_fsdp1_parameters_are_refused(process_group, use_orig_params):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(small_cnn(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)
    with pytest.raises(TypeError, match=r"FSDP1 keeps weights in flat parameters.*fully_shard"):
        regrow.DPF(model, sgd(model), sparsity=0.5)


def test_meta_and_float8_parameters_are_refused():
    with torch.device("meta"):
        model = small_cnn()
    with pytest.raises(ValueError, match=r"0\.weight is on the meta device and has no values yet: materialize"):
        regrow.DPF(model, sgd(model), sparsity=0.5)
    tiny = small_cnn()
    tiny[3].weight = nn.Parameter(tiny[3].weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(TypeError, match=r"3\.weight holds torch\.float8_e4m3fn: weights of 16, 32 or 64 bit"):
        regrow.DPF(tiny, sgd(tiny), sparsity=0.5, targets="3")
    tiny[3].weight = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"3\.weight holds torch\.complex64"):
        regrow.DPF(tiny, sgd(tiny), sparsity=0.5)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize(
    "compute",
    [
        lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
        parametrizations.weight_norm,
        lambda layer: prune.random_unstructured(layer, "weight", 0.5),
    ],
)
def test_leaving_out_a_layer_that_computes_its_weight_gives_a_warning(compute):
    model = small_cnn()
    compute(model[3])
    with pytest.warns(UserWarning, match=r"3 \(1 in all\) computes its weight from other parameters.*not pruned"):
        targets = find_targets(model)
    assert [target.name for target in targets] == ["0.weight", "6.weight"]
    assert [target.name for target in find_targets(model, ["0", "6"])] == ["0.weight", "6.weight"]


def test_names_of_a_wrapped_model_are_accepted_as_masks_and_targets():
    model = small_cnn()
    mask = torch.rand(8, 1, 3, 3) > 0.5
    fixed = regrow.Fixed(model, sgd(model), {"module._orig_mod.0.weight": mask})
    assert torch.equal(fixed.masks["0.weight"], mask)
    fixed.detach()
    assert list(regrow.DPF(model, sgd(model), sparsity=0.5, targets=["module.0", "module.3.*"]).masks) == [
        "0.weight",
        "3.weight",
    ]


def test_help_shows_every_option():
    shown = inspect.signature(regrow.DPF).parameters
    assert list(shown)[:4] == ["model", "optimizer", "sparsity", "every"]
    assert shown["every"].default == "auto"
    assert {"scope", "unit", "targets", "include_last", "floor", "weight_decay_at", "stabilize", "settle"} <= set(shown)
    assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())
