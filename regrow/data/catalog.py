"""What is known about each data set before any file of it is read."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.text import did_you_mean


@dataclass(frozen=True)
class Info:
    """The facts that models, recipes and batches need about a data set.

    `mean` and `std` are per channel, of pixels in [0, 1]. `pad` and `flip` are the standard augmentation: a
    random crop out of the image padded by `pad` black pixels on each side, and a random mirror image.
    `source` tells people where the files come from.
    """

    name: str
    title: str
    channels: int
    size: int
    classes: int
    train: int
    test: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flip: bool
    source: str


_CIFAR = (
    "Download https://www.cs.toronto.edu/~kriz/{archive} (or the hub's parquet files of {hub}) into "
    "the folder {name}/ of the directory that REGROW_DATA names"
)

_INFOS = (
    Info(
        name="digits",
        title="Digits",
        channels=1,
        size=8,
        classes=10,
        train=1297,
        test=500,
        mean=(0.2879,),
        std=(0.3535,),
        pad=0,
        flip=False,
        source="It comes with the package: reinstall regrow",
    ),
    Info(
        name="fashion-mnist",
        title="Fashion-MNIST",
        channels=1,
        size=28,
        classes=10,
        train=60_000,
        test=10_000,
        mean=(0.2860,),
        std=(0.3530,),
        pad=4,
        flip=True,
        source=(
            "Install Debian's package dataset-fashion-mnist, or put the four idx files of "
            "https://github.com/zalandoresearch/fashion-mnist into the folder fashion-mnist/ of the directory that "
            "REGROW_DATA names"
        ),
    ),
    Info(
        name="cifar10",
        title="CIFAR-10",
        channels=3,
        size=32,
        classes=10,
        train=50_000,
        test=10_000,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        pad=4,
        flip=True,
        source=_CIFAR.format(name="cifar10", archive="cifar-10-python.tar.gz", hub="uoft-cs/cifar10"),
    ),
    Info(
        name="cifar100",
        title="CIFAR-100",
        channels=3,
        size=32,
        classes=100,
        train=50_000,
        test=10_000,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        pad=4,
        flip=True,
        source=_CIFAR.format(name="cifar100", archive="cifar-100-python.tar.gz", hub="uoft-cs/cifar100"),
    ),
    Info(
        name="imagenet",
        title="ImageNet",
        channels=3,
        size=224,
        classes=1000,
        train=1_281_167,
        test=50_000,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        pad=0,
        flip=True,
        source=(
            "Ask for access at https://image-net.org or at the hub (ILSVRC/imagenet-1k), and put the hub's parquet "
            "files, or train/ and val/ with one folder of images per class, into the folder imagenet/ of the "
            "directory that REGROW_DATA names"
        ),
    ),
)


def names() -> tuple[str, ...]:
    """Return the names that `load` and `info` understand."""
    return tuple(info.name for info in _INFOS)


def info(name: str) -> Info:
    """Return what is known about the data set `name` without reading it.

    >>> info("cifar10").classes
    10
    """
    for known in _INFOS:
        if known.name == name:
            return known
    raise ValueError(f"unknown data set {name!r}: there are {', '.join(names())}.{did_you_mean(name, names())}")
