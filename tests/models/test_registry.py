"""Networks are built by name, and rebuilt from their stored architecture."""

import copy
import dataclasses
import io
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.models import Architecture, build, names


def shapes(network: torch.nn.Module) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in network.state_dict().items()}


@pytest.mark.parametrize("name", names())
def test_every_network_is_rebuilt_from_its_architecture_stored_as_json(name: str) -> None:
    with torch.device("meta"):
        network = build(name, classes=5, channels=1, size=16)
        stored = json.loads(json.dumps(dataclasses.asdict(network.architecture)))
        again = build(stored["name"], **stored["options"])
    assert again.architecture == network.architecture == Architecture(**stored)
    assert shapes(again) == shapes(network)


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 4),
    width=st.integers(1, 24),
    stem_stride=st.integers(1, 3),
    classes=st.integers(1, 30),
    channels=st.integers(1, 4),
)
def test_a_rebuilt_network_has_the_same_options(
    n: int, width: int, stem_stride: int, classes: int, channels: int
) -> None:
    with torch.device("meta"):
        network = build(f"resnet{6 * n + 2}", width=width, stem_stride=stem_stride, classes=classes, channels=channels)
        again = build(network.architecture.name, **network.architecture.options)
    assert again.architecture == network.architecture
    assert again.conv1.stride == (stem_stride, stem_stride)
    assert shapes(again) == shapes(network)


def test_the_architecture_names_defaults_too_so_that_a_changed_default_cannot_change_old_files() -> None:
    options = build("resnet8").architecture.options
    assert options == {"classes": 10, "channels": 3, "size": 32, "width": 16, "stem_stride": 1}


def test_the_architecture_is_copied_by_deepcopy_and_is_not_in_the_state_dict() -> None:
    network = build("small", channels=1, size=8)
    assert copy.deepcopy(network).architecture == network.architecture
    assert not [key for key in network.state_dict() if "architecture" in key]
    buffer = io.BytesIO()
    torch.save(network.state_dict(), buffer)
    buffer.seek(0)
    build("small", channels=1, size=8).load_state_dict(torch.load(buffer, weights_only=True))


def test_the_architecture_is_frozen_and_has_the_input_shape() -> None:
    architecture = build("small", channels=1, size=8).architecture
    assert architecture.input_shape == (1, 8, 8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        architecture.name = "resnet20"  # type: ignore[misc]


def test_names_are_unique_and_the_depths_that_both_forms_share_are_imagenet_style() -> None:
    assert len(set(names())) == len(names())
    with torch.device("meta"):
        assert type(build("resnet50")).__name__ == "ImageNetResNet"
        assert type(build("resnet56")).__name__ == "CifarResNet"


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("ResNet-20", "resnet20"),
        ("resnet-50", "resnet50"),
        ("WideResNet-28-2", "wrn28-2"),
        ("wrn_28_8", "wrn28-8"),
        ("vgg-16", "vgg16"),
        ("desnet40", "densenet40"),
        ("small8", "small"),
    ],
)
def test_the_error_of_an_unknown_name_has_the_nearest_one(wrong: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"unknown network '{wrong}'. Did you mean '{nearest}'"):
        build(wrong)


@pytest.mark.parametrize(("name", "rule"), [("resnet21", "6n\\+2"), ("wrn27-2", "6n\\+4"), ("densenet41", "6n\\+4")])
def test_the_error_of_an_impossible_depth_lists_possible_ones(name: str, rule: str) -> None:
    with pytest.raises(ValueError, match=f"cannot build '{name}': .*{rule}"):
        build(name)


def test_the_error_of_an_unknown_option_has_the_nearest_and_all_options() -> None:
    with pytest.raises(ValueError, match=r"resnet20 has no option 'wide'. Did you mean 'width'"):
        build("resnet20", wide=8)
    with pytest.raises(ValueError, match="It takes classes, channels, size, growth"):
        build("densenet40", dropout=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "classes must be a whole number from 1 to 1,048,576, got 0"),
        ({"channels": -1}, "channels must be a whole number from 1 to 4,096, got -1"),
        ({"size": 2}, "size must be a whole number from 4 to 1,024, got 2"),
        ({"width": 0}, "width of resnet20 must be a positive whole number, got 0"),
        ({"width": 1.5}, "width of resnet20 must be a positive whole number, got 1.5"),
    ],
)
def test_a_wrong_value_is_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("resnet20", **options)
