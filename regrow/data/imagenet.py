"""ImageNet (ILSVRC 2012), from the hub's parquet files or from one folder of images per class."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from regrow.data import files, parquet
from regrow.data.files import DataError, broken
from regrow.data.random import Indices
from regrow.data.registry import Dataset, DatasetInfo
from regrow.data.stream import WINDOW, ImageStream, Reader
from regrow.system import cores

_IMAGES = (".jpeg", ".jpg", ".png")


def load(info: DatasetInfo, split: str, *, root: Path | str | None, workers: int | None, **_: object) -> ImageStream:
    """Return the training images, or for "test" the validation images, whose labels are public."""
    parts = ("train",) if split == "train" else ("validation", "val")
    workers = min(8, cores()) if workers is None else workers
    if workers < 0:
        raise ValueError(f"workers must be 0 (decode in this process) or more, got {workers}")
    searched = files.folders(info.name, root)
    for folder in searched:
        for part in parts:
            for place in (folder, folder / "data"):
                if shards := parquet.shards(place, part):
                    return _from_shards(info, shards, workers)
            if (folder / part).is_dir():
                return _from_folders(info, folder / part, workers)
    raise files.missing(info, searched)


def _from_shards(info: DatasetInfo, shards: list[Path], workers: int) -> ImageStream:
    labels, names = parquet.read_labels(info, shards, "label")
    for path, found in zip(shards, labels, strict=True):
        if len(found) and not 0 <= found.min() <= found.max() < info.classes:
            why = f"labels must be in [0, {info.classes}), got {found.min()} to {found.max()}"
            raise broken(path, why, f"{info.source}.")
    classes = names or tuple(map(str, range(info.classes)))
    return _stream(info, ParquetReader(info, shards), np.concatenate(labels), classes, workers)


def _from_folders(info: DatasetInfo, folder: Path, workers: int) -> ImageStream:
    """Number classes in the order of their folders' names, as other libraries do."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    if len(names) != info.classes:
        why = f"has {len(names)} class folders where {info.title} has {info.classes}"
        raise broken(folder, why, f"{info.source}.")
    paths: list[Path] = []
    counts = []
    for name in names:
        with os.scandir(folder / name) as entries:
            found = sorted(entry.name for entry in entries if entry.name.lower().endswith(_IMAGES))
        if not found:
            raise DataError(f"{folder / name}: holds no image. {info.source}.")
        paths += [folder / name / file for file in found]
        counts.append(len(found))
    labels = np.repeat(np.arange(len(names)), counts)
    return _stream(info, FileReader(info, paths), labels, tuple(names), workers)


def _stream(info: DatasetInfo, reader: Reader, labels: Indices, classes: tuple[str, ...], workers: int) -> ImageStream:
    return ImageStream(
        info=info,
        labels=torch.from_numpy(labels),
        classes=classes,
        reader=reader,
        rows=np.arange(len(labels)),
        workers=workers,
    )


class FileReader:
    """Images in separate files, which can be read in any order."""

    blocks = None

    def __init__(self, info: DatasetInfo, paths: Sequence[Path]) -> None:
        self._info = info
        self._paths = [str(path) for path in paths]

    def read(self, row: int) -> bytes:
        """Return the content of the file."""
        path = Path(self._paths[row])
        try:
            return path.read_bytes()
        except OSError as error:
            raise broken(path, f"cannot be read ({error.strerror})", f"{self._info.source}.") from error

    def where(self, row: int) -> str:
        """Return the file's path."""
        return self._paths[row]


class ParquetReader:
    """Images in row groups of parquet files; the last groups that were read stay in memory."""

    def __init__(self, info: DatasetInfo, files: Sequence[Path]) -> None:
        self._info = info
        self._groups: list[tuple[Path, str, int, int]] = []
        for path in files:
            with parquet.opened(path, info) as file:
                column = parquet.image_column(file.schema_arrow, path, info)
                counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            self._groups += [(path, column, number, count) for number, count in enumerate(counts)]
        sizes = [count for *_, count in self._groups]
        self._firsts = np.cumsum([0, *sizes])
        self._blocks = np.repeat(np.arange(len(sizes)), sizes)
        self._kept: OrderedDict[int, list[bytes | None]] = OrderedDict()

    @property
    def blocks(self) -> Indices:
        """The row group of each image."""
        return self._blocks

    def read(self, row: int) -> bytes | None:
        """Return the encoded image; its row group is read if it is not in memory."""
        block = int(self._blocks[row])
        if block not in self._kept:
            self._kept[block] = self._load(block)
            while len(self._kept) > WINDOW:
                self._kept.popitem(last=False)
        self._kept.move_to_end(block)
        return self._kept[block][row - int(self._firsts[block])]

    def where(self, row: int) -> str:
        """Return the file's path, the row group and the row in it."""
        block = int(self._blocks[row])
        path, _, number, _ = self._groups[block]
        return f"{path}: row group {number}, row {row - int(self._firsts[block])}"

    def _load(self, block: int) -> list[bytes | None]:
        path, column, number, count = self._groups[block]
        with parquet.opened(path, self._info) as file:
            table = file.read_row_group(number, columns=[column], use_threads=False)
            encoded: list[bytes | None] = table[column].combine_chunks().field("bytes").to_pylist()
        if len(encoded) != count:
            why = f"row group {number} has {len(encoded)} images instead of {count}"
            raise broken(path, why, f"{self._info.source}.")
        return encoded


IMAGENET = Dataset(
    DatasetInfo(
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
    load,
)
