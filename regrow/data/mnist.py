"""MNIST and Fashion-MNIST: 28x28 gray images of handwritten digits and of clothes, each in four idx files."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from regrow.data import files
from regrow.data.files import Bytes, DataError, Remote, broken, fetch
from regrow.data.images import ImageSet, image_set
from regrow.data.registry import Dataset, DatasetInfo


def _remotes(url: str, digests: str) -> tuple[Remote, ...]:
    """Return the four files under `url`, with their SHA-256."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(Remote(f"{url}{name}-ubyte.gz", digest) for name, digest in zip(names, digests.split(), strict=True))


REMOTES = {
    "mnist": _remotes(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        """
        440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
        3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
        8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
        f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
        """,
    ),
    "fashion-mnist": _remotes(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        """
        3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
        a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
        346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
        67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
        """,
    ),
}
_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
}
_UBYTE = 8


def load(info: DatasetInfo, split: str, *, root: Path | str | None, download: bool, **_: object) -> ImageSet:
    """Return the "train" or "test" images; missing files are downloaded, unless a `root` is given."""
    part = "train" if split == "train" else "t10k"
    remotes = REMOTES[info.name]
    searched = files.folders(info.name, root)
    for folder in searched:
        if any(_paths(folder, f"{part}-images-idx3-ubyte")):
            for remote in remotes:
                if (folder / remote.name).is_file():
                    files.check_download(folder / remote.name, remote, info)
            return _read(info, folder, part)
    if root is not None or not download:
        raise files.missing(info, searched)
    return _read(info, fetch(info, remotes), part)


def _read(info: DatasetInfo, folder: Path, part: str) -> ImageSet:
    images = _array(info, folder, f"{part}-images-idx3-ubyte", 3)
    labels = _array(info, folder, f"{part}-labels-idx1-ubyte", 1)
    return image_set(info, folder / f"{part}-*", images[:, None], labels.astype(np.int64), _CLASSES[info.name])


def _array(info: DatasetInfo, folder: Path, name: str, dimensions: int) -> Bytes:
    for path in _paths(folder, name):
        try:
            most = max(info.train, info.test) * (info.size**2 if dimensions == 3 else 1)
            return read_idx(path, dimensions, most=most)
        except DataError as error:
            raise broken(path, str(error), f"{info.source}.") from error
    raise broken(folder / f"{name}.gz", "is missing", f"{info.source}.")


def _paths(folder: Path, name: str) -> list[Path]:
    return [path for path in (folder / f"{name}.gz", folder / name) if path.is_file()]


def read_idx(path: Path, dimensions: int, *, most: int) -> Bytes:
    """Read an array of at most `most` bytes in `dimensions` dimensions from an idx file, with or without gzip.

    The limit is that of the data set: a small compressed file can hold any number of zeros.
    The format is: two zero bytes, the type, the number of dimensions, each size as a big-endian 32-bit word, the data.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if header[:4] != bytes([0, 0, _UBYTE, dimensions]):
                raise DataError(
                    f"is not an idx file of bytes in {dimensions} dimensions (it starts with {header[:4]!r})"
                )
            if len(header) < 4 + 4 * dimensions:
                raise DataError(f"ends within its header, after {len(header)} bytes")
            shape = tuple(int(size) for size in np.frombuffer(header, ">u4", offset=4))
            expected = math.prod(shape)
            if expected > most:
                raise DataError(f"claims the impossible shape {shape}: the data set has at most {most:,} bytes")
            content = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot be read ({error})") from error
    if len(content) != expected:
        more = "at least " if len(content) > expected else ""
        raise DataError(f"has {more}{len(content)} bytes, but its shape {shape} needs {expected}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape).copy()


MNIST = Dataset(
    DatasetInfo(
        name="mnist",
        title="MNIST",
        channels=1,
        size=28,
        classes=10,
        train=60_000,
        test=10_000,
        mean=(0.1307,),
        std=(0.3081,),
        pad=2,  # the digits are centered: small shifts are enough
        flip=False,
        source=(
            "Put the four idx files of MNIST (train-images-idx3-ubyte.gz, ...), or with some of its images, into "
            "the folder mnist/ of the directory that REGROW_DATA names"
        ),
    ),
    load,
)

FASHION_MNIST = Dataset(
    replace(
        MNIST.info,
        name="fashion-mnist",
        title="Fashion-MNIST",
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
    load,
)
