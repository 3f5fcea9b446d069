"""The networks have the published sizes, run on every data set's shape and start as the papers say."""

import math

import pytest
import torch
from torch import nn

from regrow.models import build

SHAPES = {"digits": (1, 8), "fashion-mnist": (1, 28), "cifar": (3, 32), "imagenet": (3, 64)}


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def conv_weights(network: nn.Module) -> int:
    return sum(m.weight.numel() for m in network.modules() if isinstance(m, nn.Conv2d))


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [
        ("resnet20", 10, 272_474),  # 0.27 M in He et al., where option A saves the projections' 2,752
        ("resnet56", 10, 855_770),  # 0.85 M
        ("resnet110", 10, 1_730_714),  # 1.7 M
        ("wrn28-2", 10, 1_467_610),  # 1.47 M in the DPF paper
        ("wrn28-10", 10, 36_479_194),  # 36.5 M in Zagoruyko & Komodakis
        ("wrn40-4", 10, 8_949_210),  # 8.9 M
        ("densenet100", 10, 769_162),  # 0.8 M in Huang et al.
        ("vgg16", 10, 14_724_042),  # 14.7 M
        ("vgg16-d", 10, 15_251_402),  # 15.25 M in the code of SNIP, Sparse Momentum and DPF's authors
        ("resnet18", 1000, 11_689_512),  # the ImageNet networks as torchvision counts them
        ("resnet34", 1000, 21_797_672),
        ("resnet50", 1000, 25_557_032),  # 25.56 M in the DPF paper
        ("resnet101", 1000, 44_549_160),
        ("resnet152", 1000, 60_192_808),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, classes: int, expected: int) -> None:
    with torch.device("meta"):
        assert parameters(build(name, classes=classes)) == expected


def test_the_convolutions_of_resnet50_hold_23_454_912_weights() -> None:
    with torch.device("meta"):
        assert conv_weights(build("resnet50", classes=1000)) == 23_454_912


def test_the_small_network_has_the_calibrated_23_184_conv_weights_on_digits() -> None:
    assert conv_weights(build("small", channels=1, size=8)) == 23_184


@pytest.mark.parametrize("data", SHAPES)
@pytest.mark.parametrize("name", ["resnet8", "wrn10-2", "vgg16", "densenet40", "small", "resnet18", "resnet50"])
def test_every_family_runs_on_every_image_size(name: str, data: str) -> None:
    channels, size = SHAPES[data]
    with torch.device("meta"):
        network = build(name, classes=7, channels=channels, size=size)
        assert network(torch.empty(2, channels, size, size)).shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet8", "wrn10-1", "vgg16", "densenet10", "resnet18", "small"])
def test_one_real_step_gives_every_parameter_a_finite_gradient(name: str) -> None:
    torch.manual_seed(0)
    network = build(name, channels=1, size=8)
    nn.functional.cross_entropy(network(torch.randn(4, 1, 8, 8)), torch.arange(4)).backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.count_nonzero(), parameter_name


@pytest.mark.parametrize("name", ["resnet20", "wrn28-2", "vgg16", "densenet40", "resnet18", "small"])
def test_convolutions_start_with_variance_two_over_fan_out(name: str) -> None:
    torch.manual_seed(0)
    for module in build(name).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 4000:
            fan_out = module.out_channels * math.prod(module.kernel_size)
            assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.06)


@pytest.mark.parametrize("name", ["resnet8", "wrn10-1", "vgg16", "densenet10", "resnet18", "small"])
def test_only_the_last_layer_has_a_bias_and_it_starts_at_zero(name: str) -> None:
    network = build(name, channels=1, size=8)
    biases = {
        key
        for key, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None
    }
    assert biases == {"fc"}
    assert not network.fc.bias.count_nonzero()


def test_the_same_seed_draws_the_same_weights() -> None:
    torch.manual_seed(3)
    first = build("resnet8").state_dict()
    torch.manual_seed(3)
    second = build("resnet8").state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_cifar_resnet_has_projection_shortcuts_only_where_the_width_changes() -> None:
    network = build("resnet20")
    projections = [key for key, m in network.named_modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert projections == ["layer2.0.downsample.0", "layer3.0.downsample.0"]


def test_a_stem_stride_of_two_quarters_the_positions() -> None:
    images = torch.randn(2, 3, 32, 32)
    plain, strided = build("resnet8"), build("resnet8", stem_stride=2)
    assert plain.conv1(images).shape[2:] == (32, 32)
    assert strided.conv1(images).shape[2:] == (16, 16)


def test_imagenet_resnets_name_their_parameters_as_torchvision_does() -> None:
    keys = set(build("resnet50", classes=1000).state_dict())
    assert len(keys) == 320
    assert {
        "conv1.weight",
        "bn1.running_var",
        "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.num_batches_tracked",
        "layer3.5.conv3.weight",
        "layer4.2.bn3.bias",
        "fc.weight",
        "fc.bias",
    } <= keys
