"""The one door to every data set: a name and a split in, images out."""

from __future__ import annotations

from pathlib import Path

from regrow.data import catalog, cifar, digits, fashion, imagenet
from regrow.data.images import ImageSet
from regrow.data.stream import ImageStream

_SPLITS = ("train", "test")


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

    Files are looked for in `root/name`, or, without `root`, in `$REGROW_DATA/name` and the cache, into which they are
    downloaded if they are in neither and `download` allows it. A file that is missing or broken is a `DataError` that
    names it. `limit` keeps that many images, spread evenly over the set.

    ImageNet alone is a stream that `workers` processes decode (up to 8 by default); it cannot be downloaded here, and
    its "test" part is the validation images.

    >>> train = load("digits", "train")
    >>> len(train), train.info.classes
    (1297, 10)
    """
    info = catalog.info(name)
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
    images: ImageSet | ImageStream
    if name == "digits":
        images = digits.load(info, split)
    elif name == "fashion-mnist":
        images = fashion.load(info, split, root=root, download=download)
    elif name == "imagenet":
        images = imagenet.load(info, split, root=root, workers=workers)
    else:
        images = cifar.load(info, split, root=root, download=download)
    return images if limit is None else images.limit(limit)
