"""Data sets by name: one line for each, whose module is imported when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from regrow.text import did_you_mean

if TYPE_CHECKING:
    from regrow.data.images import ImageSet
    from regrow.data.stream import ImageStream

DATASETS = {
    "digits": "regrow.data.digits:DIGITS",
    "mnist": "regrow.data.mnist:MNIST",
    "fashion-mnist": "regrow.data.mnist:FASHION_MNIST",
    "cifar10": "regrow.data.cifar:CIFAR10",
    "cifar100": "regrow.data.cifar:CIFAR100",
    "imagenet": "regrow.data.imagenet:IMAGENET",
}
"""The `Dataset` of each name, as "module:attribute"."""

_SPLITS = ("train", "test")


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set.

    `mean` and `std` are per channel, of pixels in [0, 1]. `pad` and `flip` are the standard augmentation: a random crop
    of the image padded by `pad` black pixels on each side, and a random horizontal flip. `source` says where to get the
    files; errors end with it.
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


@dataclass(frozen=True)
class Dataset:
    """A data set and the function that loads it: `load(info, split, root=..., download=..., workers=...)`."""

    info: DatasetInfo
    load: Callable[..., ImageSet | ImageStream]


def names() -> tuple[str, ...]:
    """Return the names that `load` and `info` know."""
    return tuple(DATASETS)


def info(name: str) -> DatasetInfo:
    """Return the facts about data set `name`, without reading its files.

    >>> info("cifar10").classes
    10
    """
    return _dataset(name).info


def title(name: str) -> str:
    """Return the title of data set `name`; for your own data (`module:function`), this is the name."""
    return name if ":" in name else info(name).title


def load(
    name: str,
    split: str = "train",
    *,
    root: Path | str | None = None,
    limit: int | None = None,
    download: bool = True,
    workers: int | None = None,
) -> ImageSet | ImageStream:
    """Return the "train" or "test" images of data set `name` (see `names()`).

    Files are searched in `root/name` or, without `root`, in `$REGROW_DATA/name` and the cache. If they are missing
    there and `download` is True, they are downloaded to the cache. A missing or broken file raises a `DataError` that
    names it. `limit` keeps that many images, spread evenly over the set.

    ImageNet is a stream that `workers` processes decode (up to 8 by default). It cannot be downloaded, and its "test"
    split contains the validation images.

    >>> train = load("digits", "train")
    >>> len(train), train.info.classes
    (1297, 10)
    """
    dataset = _dataset(name)
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
    images = dataset.load(dataset.info, split, root=root, download=download, workers=workers)
    return images if limit is None else images.limit(limit)


def _dataset(name: str) -> Dataset:
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}.{did_you_mean(name, names())} Known names: {', '.join(names())}.")
    dataset: Dataset = resolve_name(DATASETS[name])
    return dataset
