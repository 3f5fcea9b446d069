"""CIFAR-10 and CIFAR-100, from parquet files or the original pickled batches, read without running their code."""

from __future__ import annotations

import pickle
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from regrow.data import files, parquet
from regrow.data.files import Bytes, DataError, Remote, broken, fetch
from regrow.data.images import ImageSet, image_set
from regrow.data.random import Indices
from regrow.data.registry import Dataset, DatasetInfo
from regrow.pickles import CarefulUnpickler


@dataclass(frozen=True)
class CifarFiles:
    """Names of the files of one data set, of the labels in them, and of the classes."""

    archive: Remote
    folder: str
    batches: Mapping[str, tuple[str, ...]]
    column: str
    """Of the labels in parquet files; in the authors' files it is their plural."""
    classes: tuple[str, ...]


LAYOUTS: Mapping[str, CifarFiles] = {
    "cifar10": CifarFiles(
        archive=Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
        folder="cifar-10-batches-py",
        batches={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        column="label",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": CifarFiles(
        archive=Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
        folder="cifar-100-python",
        batches={"train": ("train",), "test": ("test",)},
        column="fine_label",
        classes=tuple(
            """
            apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
            castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
            elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
            lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
            pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
            shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
            telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
            """.split()  # noqa: SIM905 (shorter than a hundred quoted names)
        ),
    ),
}


def load(info: DatasetInfo, split: str, *, root: Path | str | None, download: bool, **_: object) -> ImageSet:
    """Return the "train" or "test" images from parquet files, the original batches, or their archive.

    Missing files are downloaded, unless a `root` is given.
    """
    layout = LAYOUTS[info.name]
    searched = files.folders(info.name, root)
    for folder in searched:
        if shards := parquet.shards(folder, split):
            return parquet.load(info, shards, label=layout.column, classes=layout.classes)
        # torchvision uses the last folder.
        for batches in (folder / layout.folder, folder, folder.parent / layout.folder):
            if any((batches / name).is_file() for name in layout.batches[split]):
                return _from_batches(info, layout, _in_folder(info, batches, layout.batches[split]))
        if (archive := folder / layout.archive.name).is_file():
            files.check_download(archive, layout.archive, info)
            return _from_batches(info, layout, _in_archive(info, archive, layout.batches[split]))
    if root is not None or not download:
        raise files.missing(info, searched)
    archive = fetch(info, [layout.archive]) / layout.archive.name
    return _from_batches(info, layout, _in_archive(info, archive, layout.batches[split]))


def _in_folder(info: DatasetInfo, folder: Path, names: tuple[str, ...]) -> dict[Path, bytes]:
    """Return the content of each batch."""
    try:
        return {folder / name: (folder / name).read_bytes() for name in names}
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}. {info.source}.") from error


def _in_archive(info: DatasetInfo, archive: Path, names: tuple[str, ...]) -> dict[Path, bytes]:
    """Return the content of each batch in the archive, which is read once."""
    # Twice the pixels of all images: a small compressed file can hold any number of zeros.
    most, found = 2 * _PIXELS * info.train, dict[str, bytes]()
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                name = Path(member.name).name
                if name in names and (stream := tar.extractfile(member)):
                    found[name] = stream.read(most + 1)
                if len(found.get(name, b"")) > most:
                    raise DataError(f"{archive}: {name} has more than {most:,} bytes. Delete it; {info.source}.")
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise broken(archive, f"cannot be unpacked ({error})", f"Delete it; {info.source}.") from error
    if missing := [name for name in names if name not in found]:
        raise broken(archive, f"does not contain {', '.join(missing)}", f"Delete it; {info.source}.")
    return {archive / name: found[name] for name in names}


def _from_batches(info: DatasetInfo, layout: CifarFiles, contents: dict[Path, bytes]) -> ImageSet:
    images, labels = [], []
    for path, content in contents.items():
        try:
            pixels, numbers = read_batch(content, f"{layout.column}s")
        except DataError as error:
            raise broken(path, str(error), f"{info.source}.") from error
        images.append(pixels)
        labels.append(numbers)
    return image_set(info, next(iter(contents)), np.concatenate(images), np.concatenate(labels), layout.classes)


_PIXELS = 3 * 32 * 32


class _Request:
    """A call that the pickle requests, recorded instead of executed."""

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.name, self.args = name, args
        self.state: Any = None

    def __call__(self, *args: Any) -> _Request:
        return _Request(self.name, args)


class _Reader(CarefulUnpickler):
    """Unpickler that accepts only the three names in CIFAR's files, and records the calls."""

    def find_class(self, module: str, name: str) -> _Request:
        if (module.replace("._core", ".core"), name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }:
            return _Request(name)
        raise pickle.UnpicklingError(f"it requests {module[:100]}.{name[:100]}, which is not in a CIFAR batch")

    def give_state(self, instance: Any, state: Any) -> None:
        """Record the state of an array or a type."""
        if isinstance(instance, _Request):
            instance.state = state


def read_batch(content: bytes, label: str) -> tuple[Bytes, Indices]:
    """Return the images (N, 3, 32, 32) and the labels under the key `label` of a pickled CIFAR batch.

    Raises a `DataError` that says what is wrong; the caller adds the path.
    """
    try:
        batch = _Reader(content, encoding="bytes").load()
    # A broken pickle can raise any exception.
    except Exception as error:
        raise DataError(f"is not a CIFAR batch ({error or type(error).__name__})") from error
    if not isinstance(batch, dict):
        raise DataError(f"is not a CIFAR batch (it holds a {type(batch).__name__}, not a dict)")
    images, labels = _array(batch.get(b"data")), batch.get(label.encode())
    if not isinstance(labels, list) or not all(type(value) is int for value in labels):
        raise DataError(f"is not a CIFAR batch (no list of integers under {label!r})")
    if len(labels) != len(images):
        raise DataError(f"holds {len(images)} images but {len(labels)} labels")
    return images, np.array(labels, dtype=np.int64)


def _array(request: Any) -> Bytes:
    """Return the requested uint8 array of shape (N, 3072) as images."""
    match request:
        case _Request(
            name="_reconstruct",
            state=(_, (int(count), int(width)), _Request(name="dtype", args=(kind, *_)), False, bytes(content)),
        ) if kind in (b"u1", "u1") and width == _PIXELS and count * width == len(content):
            return np.frombuffer(content, dtype=np.uint8).reshape(count, 3, 32, 32)
    raise DataError(f"is not a CIFAR batch (no array of bytes with {_PIXELS} columns under 'data')")


_SOURCE = (
    "Download https://www.cs.toronto.edu/~kriz/{archive} (or the hub's parquet files of {hub}) into "
    "the folder {name}/ of the directory that REGROW_DATA names"
)

CIFAR10 = Dataset(
    DatasetInfo(
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
        source=_SOURCE.format(name="cifar10", archive="cifar-10-python.tar.gz", hub="uoft-cs/cifar10"),
    ),
    load,
)
CIFAR100 = Dataset(
    replace(
        CIFAR10.info,
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        source=_SOURCE.format(name="cifar100", archive="cifar-100-python.tar.gz", hub="uoft-cs/cifar100"),
    ),
    load,
)
