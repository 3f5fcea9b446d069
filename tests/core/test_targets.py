"""Which parameters are pruned by default, by name, by glob and by predicate."""

import copy

import pytest
import torch
from torch import nn

import regrow
from regrow.core.targets import find_targets
from tests.core.nets import sgd, small_cnn


def names(*args, **options):
    return [target.name for target in find_targets(*args, **options)]


def test_the_default_is_every_convolution_and_linear_weight_but_the_last_linear():
    assert names(small_cnn()) == ["0.weight", "3.weight", "6.weight"]
    assert names(small_cnn(), include_last=True) == ["0.weight", "3.weight", "6.weight", "8.weight"]


def test_names_globs_modules_and_predicates_select():
    net = nn.Sequential()
    net.stem, net.head = small_cnn(), nn.Linear(10, 2)
    assert names(net, "head") == ["head.weight"]
    assert names(net, "stem.0.weight") == ["stem.0.weight"]
    assert names(net, ["stem.*", "head.weight"]) == [f"stem.{i}.weight" for i in (0, 3, 6, 8)] + ["head.weight"]
    assert names(net, lambda name, p: p.ndim == 4) == ["stem.0.weight", "stem.3.weight"]


def test_the_error_for_an_unknown_name_names_the_nearest():
    net = nn.Sequential()
    net.layer4 = small_cnn()
    with pytest.raises(ValueError, match=r"no weight matches target 'layer5\.\*'.*layer4\.0\.weight.*'layer4\.\*'"):
        find_targets(net, "layer5.*")
    with pytest.raises(ValueError, match="selects no parameter"):
        find_targets(net, lambda name, p: False)
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got generator"):
        find_targets(nn.Linear(2, 2).parameters())
    with pytest.raises(TypeError, match="names, globs, modules or a predicate, got 3"):
        find_targets(net, [3])


def test_tied_weights_are_pruned_once():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    net[1].weight = net[0].weight
    optimizer = sgd(net)
    pruner = regrow.DPF(net, optimizer, sparsity=0.5)
    assert list(pruner.masks) == ["0.weight"]
    assert net[1].weight is net[0].weight
    assert int((net[1].weight == 0).sum()) == 8


def test_a_model_with_nothing_to_prune_raises_an_error():
    with pytest.raises(ValueError, match=r"nothing to prune.*include_last=True"):
        find_targets(nn.Sequential(nn.Linear(3, 2)))


def test_integer_and_lazy_and_strided_parameters_are_refused():
    net = small_cnn()
    net.codes = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(TypeError, match=r"codes holds torch\.int8"):
        find_targets(net, "codes")
    with pytest.raises(ValueError, match="run one batch"):
        find_targets(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)))
    net.wide = nn.Parameter(torch.zeros(4, 8)[:, ::2])
    with pytest.raises(ValueError, match="wide has overlapping or padded storage"):
        find_targets(net, "wide")


def test_filters_of_a_transposed_convolution_lie_along_its_second_dimension():
    net = nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.Conv2d(6, 2, 1))
    pruner = regrow.DPF(net, sgd(net), sparsity=0.5, unit="filter")
    per_filter = pruner.masks["0.weight"].sum(dim=(0, 2, 3))
    assert set(per_filter.tolist()) <= {0, 4 * 9}


def test_nothing_is_changed_by_a_refused_attachment():
    net = small_cnn()
    before = copy.deepcopy(net.state_dict())
    optimizer = torch.optim.SGD(net[0].parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"does not hold 3\.weight"):
        regrow.DPF(net, optimizer, sparsity=0.5)
    assert not optimizer._optimizer_step_pre_hooks
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def shared_memory(case: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    block = torch.randn(100)
    if case == "one storage":
        model[1].weight = nn.Parameter(model[0].weight.data)
    elif case == "overlapping views":
        model[0].weight, model[1].weight = (nn.Parameter(block[i : i + 36].view(6, 6)) for i in (0, 20))
    elif case == "a view of one row":
        model[0].bias = nn.Parameter(model[0].weight.data[2])
    elif case == "behind a view of another parameter":  # the block holds both, and only the last is a target
        model.block = nn.Parameter(block)
        model[0].bias, model[1].weight = nn.Parameter(block[:6]), nn.Parameter(block[20:56].view(6, 6))
    return model


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("one storage", r"0\.weight and 1\.weight"),
        ("overlapping views", r"0\.weight and 1\.weight"),
        ("a view of one row", r"0\.weight and 0\.bias"),
        ("behind a view of another parameter", r"block and 1\.weight"),
    ],
)
def test_parameters_that_share_memory_are_refused_by_name(case, names):
    model = shared_memory(case)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=f"{names} are different parameters in the same memory"):
        regrow.DPF(model, sgd(model), sparsity=0.5)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_parameters_in_one_storage_that_do_not_overlap_are_pruned():
    model, block = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)), torch.randn(72)
    model[0].weight, model[1].weight = (nn.Parameter(block[i : i + 36].view(6, 6)) for i in (0, 36))
    assert regrow.DPF(model, sgd(model), sparsity=0.5).sparsity == 0.5


def test_one_parameter_in_two_layers_is_pruned_once():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    model[1].weight = model[0].weight
    assert list(regrow.DPF(model, sgd(model), sparsity=0.5).masks) == ["0.weight"]


def test_weights_without_elements_are_left_out_and_refused_if_they_are_named():
    with pytest.warns(UserWarning, match="zero-element"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 0), nn.Linear(0, 4), nn.Linear(4, 2))
    pruner = regrow.DPF(model, sgd(model), sparsity=0.5)
    assert (list(pruner.masks), pruner.sparsity, pruner.stats().layers) == (["0.weight"], 0.5, {"0.weight": 0.5})
    pruner.detach()
    with pytest.raises(ValueError, match=r"1\.weight has no elements, its shape is \(0, 4\)"):
        regrow.DPF(model, sgd(model), sparsity=0.5, targets=["0", "1"])
    with pytest.raises(ValueError, match="nothing to prune"):
        regrow.DPF(model, sgd(model), sparsity=0.5, exclude="0")
