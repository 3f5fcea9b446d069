"""Networks by name: `build("resnet20")`."""

import inspect
import re
from collections.abc import Callable

from regrow.models.base import Architecture, Network, Option
from regrow.models.densenet import DenseNet
from regrow.models.resnet import IMAGENET_DEPTHS, CifarResNet, ImageNetResNet, WideResNet
from regrow.models.small import SmallCNN
from regrow.models.vgg import VGG16, VGG16D
from regrow.text import did_you_mean

_CIFAR = (
    *(f"resnet{depth}" for depth in (8, 20, 32, 44, 56, 110)),
    *(f"wrn28-{widen}" for widen in (2, 4, 8)),
    "vgg16",
    "vgg16-d",
    "densenet40",
    "densenet100",
    "small",
)
_IMAGENET = tuple(f"resnet{depth}" for depth in IMAGENET_DEPTHS)

# A name is a family and its numbers; the numbers are the positional arguments of the class.
_FAMILIES: tuple[tuple[str, Callable[..., Network]], ...] = (
    (rf"resnet({'|'.join(map(str, IMAGENET_DEPTHS))})", ImageNetResNet),
    (r"resnet(\d+)", CifarResNet),
    (r"wrn(\d+)-(\d+)", WideResNet),
    (r"vgg16", VGG16),
    (r"vgg16-d", VGG16D),
    (r"densenet(\d+)", DenseNet),
    (r"small", SmallCNN),
)


def names() -> tuple[str, ...]:
    """Return the names that `build` knows: networks for small images first, then those in ImageNet style.

    CIFAR style: `resnet8/20/32/44/56/110`, `wrn28-2/4/8`, `vgg16`, `vgg16-d` (with hidden linear layers),
    `densenet40/100`, `small`. ImageNet style (7x7 stem and max-pool, best from 64 pixels): `resnet18/34/50/101/152`.
    `build` also takes other depths and widths of these families: `resnet14` (6n+2), `wrn16-4` (6n+4), `densenet22`
    (6n+4).
    """
    return _CIFAR + _IMAGENET


def build(name: str, *, classes: int = 10, channels: int = 3, size: int = 32, **options: Option) -> Network:
    """Build a network with newly initialized weights.

    Every network takes images of `channels` x `size` x `size` pixels and returns `classes` logits; the
    remaining options are those of its class, such as `width` (base width) or `stem_stride` for `resnet20`,
    `growth` for `densenet40`. All options, including defaults, are in `model.architecture`.

    >>> build("resnet20", classes=100).architecture.name
    'resnet20'
    """
    make, numbers = _family(name)
    common = {"classes": classes, "channels": channels, "size": size}
    for option, least in (("classes", 1), ("channels", 1), ("size", 4)):
        if common[option] < least:
            raise ValueError(f"{option} must be at least {least}, got {common[option]}.")
    options = _complete(name, make, options)
    try:
        network = make(*numbers, classes=classes, channels=channels, **options)
    except ValueError as error:
        raise ValueError(f"cannot build {name!r}: {error}") from None
    network.architecture = Architecture(name, {**common, **options})
    return network


def _family(name: str) -> tuple[Callable[..., Network], list[int]]:
    for pattern, make in _FAMILIES:
        if match := re.fullmatch(pattern, name):
            return make, [int(number) for number in match.groups()]
    plain = re.sub(r"wideresnet|wide_resnet", "wrn", name.lower()).replace("_", "-")
    hint = did_you_mean(plain, names())
    raise ValueError(f"unknown network {name!r}.{hint} Known names: {', '.join(names())}.")


def _complete(name: str, make: Callable[..., Network], given: dict[str, Option]) -> dict[str, Option]:
    """Return all options of the class, with the given values, in the order of its signature."""
    parameters = inspect.signature(make).parameters.values()
    defaults: dict[str, Option] = {
        p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("classes", "channels")
    }
    for option, value in given.items():
        if option not in defaults:
            known = ["classes", "channels", "size", *defaults]
            hint = did_you_mean(option, known)
            raise ValueError(f"{name} has no option {option!r}.{hint} It takes {', '.join(known)}.")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{option} of {name} must be a positive whole number, got {value!r}.")
    return {**defaults, **given}
