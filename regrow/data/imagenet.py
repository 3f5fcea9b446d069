"""ImageNet (ILSVRC 2012), as the hub's parquet shards or as one folder of images per class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from regrow.data import files, parquet
from regrow.data.catalog import Info
from regrow.data.draws import Indices
from regrow.data.encoded import Files, Reader, Shards
from regrow.data.errors import DataError, broken, require
from regrow.data.stream import ImageStream
from regrow.system import cores

_IMAGES = (".jpeg", ".jpg", ".png")


def load(info: Info, split: str, *, root: Path | str | None, workers: int | None) -> ImageStream:
    """Return the training images, or as "test" the validation images, whose labels are the public ones."""
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


def _from_shards(info: Info, shards: list[Path], workers: int) -> ImageStream:
    labels, names = [], None
    for path in shards:
        with parquet.reading(path, info):
            file = require("pyarrow.parquet").ParquetFile(path)
            labels.append(parquet.read_labels(file, "label", path, info))
            names = names or parquet.class_names(file.schema_arrow, "label")
        if len(labels[-1]) and not 0 <= labels[-1].min() <= labels[-1].max() < info.classes:
            why = f"labels must be in [0, {info.classes}), got {labels[-1].min()} to {labels[-1].max()}"
            raise broken(path, why, f"{info.source}.")
    classes = names or tuple(map(str, range(info.classes)))
    return _stream(info, Shards(info, shards), np.concatenate(labels), classes, workers)


def _from_folders(info: Info, folder: Path, workers: int) -> ImageStream:
    """Classes are numbered in the order of their folders' names, as everywhere."""
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
    return _stream(info, Files(info, paths), labels, tuple(names), workers)


def _stream(info: Info, reader: Reader, labels: Indices, classes: tuple[str, ...], workers: int) -> ImageStream:
    return ImageStream(
        info=info,
        labels=torch.from_numpy(labels),
        classes=classes,
        reader=reader,
        rows=np.arange(len(labels)),
        workers=workers,
    )
