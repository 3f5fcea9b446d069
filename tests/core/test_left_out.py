"""What is not pruned is said: layers without a known weight, embeddings, heads, computed weights."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regrow
from regrow.core.targets import find_targets


def names(model, *args, **options):
    return [target.name for target in find_targets(model, *args, **options)]


def net(**layers):
    model = nn.Module()
    for name, layer in layers.items():
        setattr(model, name, layer)
    return model


@pytest.mark.parametrize(
    ("layers", "largest"),
    [
        ({"rnn": nn.LSTM(32, 64, 2), "mid": nn.Linear(64, 16), "fc": nn.Linear(16, 4)}, "rnn.weight_hh_l0"),
        ({"rnn": nn.GRU(32, 64), "mid": nn.Linear(64, 16), "fc": nn.Linear(16, 4)}, "rnn.weight_hh_l0"),
        ({"experts": nn.Parameter(torch.randn(4, 16, 16)), "a": nn.Linear(16, 16), "b": nn.Linear(16, 2)}, "experts"),
        ({"kernel": nn.Parameter(torch.randn(16, 8, 3, 3)), "a": nn.Linear(16, 8), "b": nn.Linear(8, 2)}, "kernel"),
        ({"mix": nn.Bilinear(16, 16, 16), "a": nn.Linear(16, 8), "b": nn.Linear(8, 2)}, "mix.weight"),
    ],
    ids=["LSTM", "GRU", "experts", "functional", "Bilinear"],
)
def test_a_model_that_is_mostly_left_out_is_warned_about_once(layers, largest):
    model = net(**layers)
    with pytest.warns(UserWarning, match="only") as caught:
        regrow.DPF(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.8)
    [message] = [str(each.message) for each in caught]
    assert "% of the model's weights are pruned" in message
    assert f"The largest weights that stay dense are {largest}" in message
    assert "targets=" in message


def test_named_targets_and_excluded_weights_are_not_warned_about():
    model = net(rnn=nn.LSTM(32, 64), mid=nn.Linear(64, 16), fc=nn.Linear(16, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(model, "mid") == ["mid.weight"]
        assert names(model, exclude="rnn.*") == ["mid.weight"]
        assert "rnn.weight_ih_l0" in names(model, [model.rnn, "mid"])


def test_the_projections_of_attention_are_pruned():
    assert names(net(attention=nn.MultiheadAttention(8, 2)), include_last=True) == [
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    ]
    separate = net(attention=nn.MultiheadAttention(8, 2, kdim=4, vdim=6), fc=nn.Linear(8, 2))
    assert names(separate)[:3] == [f"attention.{each}_proj_weight" for each in "qkv"]


def test_embeddings_are_not_pruned_also_if_a_decoder_is_tied_to_them():
    model = net(words=nn.Embedding(50, 8), mid=nn.Linear(8, 8), decoder=nn.Linear(8, 50), head=nn.Linear(8, 2))
    model.decoder.weight = model.words.weight
    assert names(model) == ["mid.weight"]


class Conv1D(nn.Module):
    """Laid out like the class of transformers, which is known by its name."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))


def test_the_linear_layer_of_gpt2_is_known_with_its_output_dimension():
    model = net(c_fc=Conv1D(32, 8), c_proj=Conv1D(8, 32), head=nn.Linear(8, 4))
    assert [(target.name, target.out_dim) for target in find_targets(model)] == [
        ("c_fc.weight", 1),
        ("c_proj.weight", 1),
    ]
    pruner = regrow.DPF(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.5, unit="filter", scope="layer")
    assert int(pruner.masks["c_fc.weight"].any(dim=0).sum()) == 16
    assert bool(pruner.masks["c_fc.weight"].any(dim=1).all())


class StdConv(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


def test_a_layer_that_may_compute_its_weight_is_warned_about():
    with pytest.warns(UserWarning, match=r"0 \(StdConv, 2 in all\) overrides forward.*weight standardization"):
        find_targets(nn.Sequential(StdConv(3, 8, 3), nn.ReLU(), StdConv(8, 8, 3)))


def test_the_layer_that_stays_dense_is_named():
    model = net(a=nn.Linear(8, 32), fc=nn.Linear(32, 10))
    pruner = regrow.DPF(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.5)
    assert pruner.spared == "fc"
    assert "'fc' stays dense" in repr(pruner)


@pytest.mark.parametrize(
    ("model", "spared", "head"),
    [
        (net(head=nn.Linear(32, 10), a=nn.Linear(8, 32), b=nn.Linear(32, 32)), "b", "head"),
        (net(a=nn.Linear(8, 32), squeeze=nn.Linear(32, 32), out=nn.Conv2d(32, 10, 1)), "squeeze", "out"),
        (net(a=nn.Linear(8, 32), head1=nn.Linear(32, 2), head2=nn.Linear(32, 3)), "head2", "head1"),
    ],
)
def test_a_head_that_would_be_pruned_is_warned_about_and_can_be_chosen(model, spared, head):
    with pytest.warns(UserWarning, match=rf"{spared} stays dense.*{head} is pruned.*exclude='{head}'"):
        find_targets(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = names(model, exclude=head, include_last=True)
    assert f"{spared}.weight" in found
    assert f"{head}.weight" not in found


def test_a_predicate_sees_weights_only():
    seen = []
    find_targets(net(a=nn.Linear(8, 32), n=nn.BatchNorm1d(32)), lambda name, p: seen.append(name) or True)
    assert seen == ["a.weight"]


def test_modules_can_be_targets_and_must_be_part_of_the_model():
    model = net(a=nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 4)), b=nn.Linear(4, 4), c=nn.Linear(4, 2))
    assert names(model, model.a) == ["a.0.weight", "a.1.weight"]
    assert names(model, exclude=[model.a[0], "c"], include_last=True) == ["a.1.weight", "b.weight"]
    with pytest.raises(ValueError, match="targets holds a Linear that has no weight of this model"):
        find_targets(model, nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"no weight matches exclude= 'd'"):
        find_targets(model, exclude="d")
