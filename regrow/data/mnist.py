"""MNIST: 28x28 gray images of handwritten digits, in four idx files."""

from __future__ import annotations

from pathlib import Path

from regrow.data.fashion_mnist import load_idx
from regrow.data.files import Remote
from regrow.data.images import ImageSet
from regrow.data.registry import Dataset, DatasetInfo

_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
REMOTES = (
    Remote(
        f"{_URL}train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    Remote(
        f"{_URL}train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    Remote(
        f"{_URL}t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    Remote(
        f"{_URL}t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
_CLASSES = tuple("0123456789")


def load(info: DatasetInfo, split: str, *, root: Path | str | None, download: bool, **_: object) -> ImageSet:
    """Return the "train" or "test" images; missing files are downloaded, unless a `root` is given."""
    return load_idx(info, split, REMOTES, _CLASSES, root=root, download=download)


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
        pad=2,  # digits are centered: a shift by two pixels stands for a less careful hand
        flip=False,
        source=(
            "Put the four idx files of MNIST (train-images-idx3-ubyte.gz, ...), or a part of it in such files, into "
            " the folder mnist/ of the directory that REGROW_DATA names"
        ),
    ),
    load,
)
