"""Fashion-MNIST: 28x28 grey images of clothes, in four idx files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from regrow.data import files, idx
from regrow.data.catalog import Info
from regrow.data.download import Remote, fetch
from regrow.data.errors import DataError, broken
from regrow.data.files import Bytes
from regrow.data.images import ImageSet

_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
REMOTES = (
    Remote(
        f"{_URL}train-images-idx3-ubyte.gz",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    Remote(
        f"{_URL}train-labels-idx1-ubyte.gz",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    Remote(
        f"{_URL}t10k-images-idx3-ubyte.gz",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    Remote(
        f"{_URL}t10k-labels-idx1-ubyte.gz",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def load(info: Info, split: str, *, root: Path | str | None, download: bool) -> ImageSet:
    """Return the "train" or "test" part; what is nowhere is downloaded, unless a `root` was given."""
    part = "train" if split == "train" else "t10k"
    searched = files.folders(info.name, root)
    for folder in searched:
        if any(_paths(folder, f"{part}-images-idx3-ubyte")):
            return _read(info, folder, part)
    if root is not None or not download:
        raise files.missing(info, searched)
    return _read(info, fetch(info, REMOTES), part)


def _read(info: Info, folder: Path, part: str) -> ImageSet:
    images = _array(info, folder, f"{part}-images-idx3-ubyte", 3)
    labels = _array(info, folder, f"{part}-labels-idx1-ubyte", 1)
    try:
        return ImageSet(
            info=info,
            images=torch.from_numpy(images[:, None]),
            labels=torch.from_numpy(labels.astype(np.int64)),
            classes=_CLASSES,
        )
    except ValueError as error:
        raise broken(folder / f"{part}-*", str(error), f"{info.source}.") from error


def _array(info: Info, folder: Path, name: str, dimensions: int) -> Bytes:
    for path in _paths(folder, name):
        try:
            return idx.read(path, dimensions)
        except DataError as error:
            raise broken(path, str(error), f"{info.source}.") from error
    raise broken(folder / f"{name}.gz", "is missing", f"{info.source}.")


def _paths(folder: Path, name: str) -> list[Path]:
    return [path for path in (folder / f"{name}.gz", folder / name) if path.is_file()]
