"""Filters with everything that belongs to them, and filters ranked by the batch norm that follows."""

import pytest
import torch
from torch import nn

import regrow
from regrow.models import build
from tests.core.nets import batches, sgd, small_cnn, train


def with_scales(seed: int = 0) -> nn.Sequential:
    model = small_cnn(seed)
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([3.0, -1.0, 2.0, 0.5, 4.0, -6.0, 5.0, 7.0]))
        model[1].bias.copy_(torch.arange(8) + 1.0)
    return model


def test_the_bias_and_the_batch_norm_that_directly_follows_go_with_the_filter():
    model = with_scales()
    optimizer = sgd(model)
    pruner = regrow.Incremental(
        model, optimizer, sparsity=0.5, unit="filter", channels=True, scope="layer", every=1, targets=["0", "3"]
    )
    assert list(pruner.targets) == ["0.weight", "3.weight"]
    assert set(pruner.masks) == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
    train(model, optimizer, batches(5))
    live = pruner.masks["0.weight"].flatten(1).all(1)
    assert int(live.sum()) == 4
    for name in ("0.bias", "1.weight", "1.bias"):
        assert torch.equal(pruner.masks[name], live)
        assert not model.get_parameter(name)[~live].any()
    model.eval()
    x, _ = next(batches(1, seed=5))
    assert not model[:2](x)[:, ~live].any()


def test_without_channels_the_channel_is_the_constant_that_batch_norm_gives_for_zero():
    model = with_scales()
    optimizer = sgd(model)
    pruner = regrow.OneShot(model, optimizer, sparsity=0.5, unit="filter", scope="layer", targets="0")
    assert list(pruner.masks) == ["0.weight"]
    x, _ = next(batches(1, seed=5))
    dead = ~pruner.masks["0.weight"].flatten(1).all(1)
    emitted = model[:2](x)[:, dead]
    assert torch.allclose(emitted, model[1].bias[dead].view(1, -1, 1, 1).expand_as(emitted), atol=1e-5)


def test_dpf_also_keeps_dense_copies_of_a_filters_bias_and_norm():
    model = with_scales()
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, unit="filter", channels=True, scope="layer", targets="0")
    with pruner.dense():
        assert model[1].weight.tolist() == [3.0, -1.0, 2.0, 0.5, 4.0, -6.0, 5.0, 7.0]
    assert int((model[1].weight == 0).sum()) == 4
    train(model, optimizer, batches(3))
    assert pruner.state_dict()["error"]["1.weight"].numel() == 4


def test_fixed_masks_keep_channels_zero_for_fine_tuning():
    model = with_scales()
    pruner = regrow.OneShot(model, sgd(model), sparsity=0.5, unit="filter", channels=True, scope="layer", targets="0")
    masks = pruner.masks.clone()
    pruner.detach()
    optimizer = sgd(model)
    regrow.Fixed(model, optimizer, masks)
    train(model, optimizer, batches(3))
    assert not model[1].bias[~masks["1.bias"]].any()
    assert model[1].bias[masks["1.bias"]].all()


@pytest.mark.parametrize("name", ["resnet8", "wrn10-1", "vgg16", "densenet22", "small"])
def test_only_a_batch_norm_that_takes_nothing_but_the_filter_goes_with_it(name):
    model = build(name)
    pruner = regrow.OneShot(
        model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.3, unit="filter", channels=True, scope="layer"
    )
    zeroed = {
        norm for norm, module in model.named_modules() if isinstance(module, nn.BatchNorm2d) and not module.weight.all()
    }
    taken = {
        mask.removesuffix(".weight") for mask in pruner.masks if mask not in pruner.targets and mask.endswith("weight")
    }
    assert zeroed == taken
    if name == "wrn10-1":  # pre-activation: a block's second convolution meets the shortcut before the next norm
        assert not any(norm.endswith("bn1") for norm in taken)


def test_filters_are_ranked_by_the_scale_of_the_batch_norm():
    model = with_scales()
    pruner = regrow.OneShot(model, sgd(model), sparsity=0.5, unit="filter", criterion="bn", targets="0")
    assert pruner.masks["0.weight"].flatten(1).all(1).tolist() == [False, False, False, False, True, True, True, True]


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return self.fc(x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3)))


def test_unsupported_arguments_raise_errors():
    model = with_scales()
    with pytest.raises(ValueError, match=r"criterion='bn' ranks filters .* and 3.weight has none: leave it out"):
        regrow.DPF(model, sgd(model), sparsity=0.5, unit="filter", criterion="bn")
    with pytest.raises(
        ValueError, match="channels=True masks bias and batch norm with unit='filter', not with unit='weight'"
    ):
        regrow.DPF(model, sgd(model), sparsity=0.5, channels=True)
    branching = Branching()
    with pytest.raises(ValueError, match=r"torch.fx cannot trace the model.* do not use channels=True"):
        regrow.DPF(branching, sgd(branching), sparsity=0.5, unit="filter", channels=True)
    assert regrow.DPF(branching, sgd(branching), sparsity=0.5, unit="filter").sparsity == 0.5
