"""CIFAR-10 and CIFAR-100, in whichever of their layouts is on the disk."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from regrow.data import files, parquet
from regrow.data.catalog import Info
from regrow.data.download import Remote, fetch
from regrow.data.errors import DataError, broken
from regrow.data.images import ImageSet
from regrow.data.pickles import read_batch


@dataclass(frozen=True)
class Layout:
    """How the files of one of the two data sets are called, and what is in them."""

    archive: Remote
    folder: str
    batches: Mapping[str, tuple[str, ...]]
    column: str
    key: str
    classes: tuple[str, ...]


LAYOUTS: Mapping[str, Layout] = {
    "cifar10": Layout(
        archive=Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
        folder="cifar-10-batches-py",
        batches={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        column="label",
        key="labels",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": Layout(
        archive=Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
        folder="cifar-100-python",
        batches={"train": ("train",), "test": ("test",)},
        column="fine_label",
        key="fine_labels",
        classes=tuple(
            """
            apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
            castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
            elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
            lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
            pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
            shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
            telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
            """.split()  # noqa: SIM905 (a hundred lines of quoted names say no more)
        ),
    ),
}


def load(info: Info, split: str, *, root: Path | str | None, download: bool) -> ImageSet:
    """Return the "train" or "test" part from parquet files, the original batches, or their archive.

    What is nowhere is downloaded, unless a `root` was given.
    """
    layout = LAYOUTS[info.name]
    searched = files.folders(info.name, root)
    for folder in searched:
        if shards := parquet.shards(folder, split):
            return parquet.load(info, shards, label=layout.column, classes=layout.classes)
        # The last place is where torchvision puts them.
        for batches in (folder / layout.folder, folder, folder.parent / layout.folder):
            if any((batches / name).is_file() for name in layout.batches[split]):
                return _from_batches(info, layout, _in_folder(info, batches, layout.batches[split]))
        if (archive := folder / layout.archive.name).is_file():
            return _from_batches(info, layout, _in_archive(info, archive, layout.batches[split]))
    if root is not None or not download:
        raise files.missing(info, searched)
    archive = fetch(info, [layout.archive]) / layout.archive.name
    return _from_batches(info, layout, _in_archive(info, archive, layout.batches[split]))


def _in_folder(info: Info, folder: Path, names: tuple[str, ...]) -> dict[Path, bytes]:
    """Return the content of each batch."""
    try:
        return {folder / name: (folder / name).read_bytes() for name in names}
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}. {info.source}.") from error


def _in_archive(info: Info, archive: Path, names: tuple[str, ...]) -> dict[Path, bytes]:
    """Return the content of each batch in the archive, which is read once from its beginning to its end."""
    found = {}
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                name = Path(member.name).name
                if name in names and (stream := tar.extractfile(member)):
                    found[name] = stream.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise broken(archive, f"cannot be unpacked ({error})", f"Delete it; {info.source}.") from error
    if missing := [name for name in names if name not in found]:
        raise broken(archive, f"does not contain {', '.join(missing)}", f"Delete it; {info.source}.")
    return {archive / name: found[name] for name in names}


def _from_batches(info: Info, layout: Layout, contents: dict[Path, bytes]) -> ImageSet:
    images, labels = [], []
    for path, content in contents.items():
        try:
            pixels, numbers = read_batch(content, layout.key)
        except DataError as error:
            raise broken(path, str(error), f"{info.source}.") from error
        images.append(pixels)
        labels.append(numbers)
    try:
        return ImageSet(
            info=info,
            images=torch.from_numpy(np.concatenate(images)),
            labels=torch.from_numpy(np.concatenate(labels)),
            classes=layout.classes,
        )
    except ValueError as error:
        raise broken(next(iter(contents)), str(error), f"{info.source}.") from error
