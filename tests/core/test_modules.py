"""Wrapped models are unwrapped in one way, and a user's own attributes are not mistaken for wrappers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import regrow
from regrow.core.modules import clean_name, evaluating, named_parameters, unwrap
from tests.core.nets import sgd, small_cnn


class Wrapper(nn.Module):
    """A user's model whose layers are in an attribute with the name that torch's wrappers use."""

    def __init__(self) -> None:
        super().__init__()
        self.module = small_cnn()
        self.head = nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.module(x))
        return result


WRAPPERS = [torch.compile, AveragedModel, nn.DataParallel, lambda net: torch.compile(AveragedModel(net))]


@pytest.mark.parametrize("wrap", WRAPPERS, ids=["compile", "average", "data parallel", "both"])
def test_wrapped_models_have_the_names_of_the_model_inside(wrap) -> None:
    net = small_cnn()
    wrapped = wrap(net)
    assert (
        list(named_parameters(wrapped)) == list(named_parameters(net)) == [name for name, _ in net.named_parameters()]
    )
    assert type(unwrap(wrapped)) is type(net)


def test_an_attribute_called_module_belongs_to_the_model() -> None:
    model = Wrapper()
    assert unwrap(model) is model
    assert list(named_parameters(model)) == [name for name, _ in model.named_parameters()]


def test_filters_are_pruned_with_their_batch_norm_outside_an_attribute_called_module() -> None:
    model = Wrapper()
    pruner = regrow.OneShot(
        model, sgd(model), sparsity=0.5, at=1, unit="filter", channels=True, targets=["module.0", "head.0"]
    )
    assert {"head.0.weight", "head.0.bias", "head.1.weight", "head.1.bias"} <= set(pruner.masks)


@pytest.mark.parametrize(
    "wrapped",
    ["module.conv.weight", "_orig_mod.conv.weight", "module._orig_mod.conv.weight", "conv._orig_mod.weight"],
)
def test_names_of_a_wrapped_model_can_be_cleaned(wrapped: str) -> None:
    assert clean_name(wrapped) == "conv.weight"


def test_every_module_returns_to_its_own_mode() -> None:
    net = small_cnn().train()
    net[1].eval()
    modes = [module.training for module in net.modules()]
    with evaluating(net):
        assert not any(module.training for module in net.modules())
    assert [module.training for module in net.modules()] == modes
