"""Networks by name: `build("resnet20")`."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regrow.models.base import Architecture, Network, Option
from regrow.models.densenet import DenseNet
from regrow.models.resnet import IMAGENET_DEPTHS, CifarResNet, ImageNetResNet, WideResNet
from regrow.models.vgg import VGG16, VGG16D, SmallCNN
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

# Names and options also come from files: these limits, far above any published network, are checked before memory is
# allocated.
_LARGEST = {"classes": 1 << 20, "channels": 4096, "size": 1024}
_LARGEST_OPTION = 4096
_LARGEST_NUMBER = 2048
_MOST_PIXELS = 1 << 23
_MOST_PARAMETERS = 1 << 28
_MOST_ACTIVATIONS = 1 << 28

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
    (6n+4), up to depth 2048.
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
        value, most = common[option], _LARGEST[option]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{option} must be a whole number from {least} to {most:,}, got {value!r}.")
    if channels * size**2 > _MOST_PIXELS:
        raise ValueError(f"an input of {channels} x {size} x {size} has more than {_MOST_PIXELS:,} numbers.")
    options = _complete(name, make, options)
    try:
        with torch.device("meta"), _WithoutFilling():
            draft = make(*numbers, classes=classes, channels=channels, **options)
        _check_memory(draft, channels, size)
        on_meta = torch.get_default_device().type == "meta"
        network = draft if on_meta else make(*numbers, classes=classes, channels=channels, **options)
    except ValueError as error:
        raise ValueError(f"cannot build {name!r}: {error}") from None
    network.architecture = Architecture(name, {**common, **options})
    return network


def _family(name: str) -> tuple[Callable[..., Network], list[int]]:
    for pattern, make in _FAMILIES:
        if match := re.fullmatch(pattern, name):
            # Check the length first: Python is slow to parse a number of many digits.
            if any(len(number) > 9 or int(number) > _LARGEST_NUMBER for number in match.groups()):
                raise ValueError(f"{name[:40]!r} is too large: depth and width go up to {_LARGEST_NUMBER}.")
            return make, [int(number) for number in match.groups()]
    plain = re.sub(r"wideresnet|wide_resnet", "wrn", name[:100].lower()).replace("_", "-")
    hint = did_you_mean(plain, names())
    raise ValueError(f"unknown network {name[:100]!r}.{hint} Known names: {', '.join(names())}.")


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
        if value > _LARGEST_OPTION:
            raise ValueError(f"{option} of {name} must be at most {_LARGEST_OPTION:,}, got {value}.")
    return {**defaults, **given}


def _check_memory(draft: Network, channels: int, size: int) -> None:
    """Refuse a network whose weights or activations are too large; `draft` has no memory for its weights."""
    count = sum(parameter.numel() for parameter in draft.parameters())
    if count > _MOST_PARAMETERS:
        raise ValueError(f"it has {count:,} parameters, more than the {_MOST_PARAMETERS:,} allowed.")
    convolutions = [module for module in draft.modules() if isinstance(module, nn.Conv2d)]
    # Running the draft imports modules, for seconds: do it only if an upper bound, without strides, is too large.
    if max(_numbers(module, size * size) for module in convolutions) <= _MOST_ACTIVATIONS:
        return
    largest = 0

    def note(module: nn.Conv2d, _: object, output: Tensor) -> None:
        nonlocal largest
        largest = max(largest, _numbers(module, output.shape[2] * output.shape[3]))

    hooks = [module.register_forward_hook(note) for module in convolutions]
    with torch.no_grad():
        draft.eval()(torch.empty(1, channels, size, size, device="meta"))
    draft.train()
    for hook in hooks:
        hook.remove()
    if largest > _MOST_ACTIVATIONS:
        raise ValueError(
            f"with inputs of {size} x {size}, a layer needs {largest:,} numbers per image, more than the "
            f"{_MOST_ACTIVATIONS:,} allowed."
        )


def _numbers(convolution: nn.Conv2d, positions: int) -> int:
    """Return the size of a convolution's unfolded input or of its output, whichever is larger."""
    height, width = convolution.kernel_size
    return positions * max(convolution.in_channels * height * width, convolution.out_channels)


class _WithoutFilling(TorchFunctionMode):
    """Skips random initialization: on the meta device it has no effect, but imports modules for a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return func(*args, **(kwargs or {}))


def skeleton(name: str, options: dict[str, Any]) -> Network:
    """Build a network on the meta device, without memory for its weights."""
    with torch.device("meta"), _WithoutFilling():
        return build(name, **options)
