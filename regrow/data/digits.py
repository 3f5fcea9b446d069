"""Handwritten digits that come with the package, so that a first run needs no download.

8x8 images, the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin
and C. Kaynak (1998), UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, licensed CC BY 4.0.
A pixel is the number of set pixels in a 4x4 block of a 32x32 bitmap (0 to 16), multiplied by 15 here.
The split is fixed: in UCI's order, the first 1,297 images are for training and the last 500 for testing.
"""

from __future__ import annotations

import errno
from importlib.resources import as_file, files
from zipfile import BadZipFile

import numpy as np
import torch

from regrow.data.files import DataError, broken
from regrow.data.images import ImageSet
from regrow.data.registry import Dataset, DatasetInfo


def load(info: DatasetInfo, split: str, **_: object) -> ImageSet:
    """Return the "train" or "test" digits; the other arguments of `regrow.data.load` have no effect."""
    images, labels = _read(info)
    part = slice(None, info.train) if split == "train" else slice(info.train, None)
    return ImageSet(
        info=info,
        images=torch.from_numpy(images[part, None] * np.uint8(15)),
        labels=torch.from_numpy(labels[part].astype(np.int64)),
        classes=tuple("0123456789"),
    )


def _read(info: DatasetInfo) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], ...]:
    with as_file(files("regrow.data") / "digits.npz") as path:
        try:
            with np.load(path, allow_pickle=False) as archive:
                images, labels = archive["images"], archive["labels"]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
                raise  # the file is not damaged, but the process may not open it
            raise broken(path, f"cannot be read ({error})", f"{info.source}.") from error
        if images.shape != (info.train + info.test, 8, 8) or labels.shape != (info.train + info.test,):
            raise DataError(f"{path}: holds images of shape {images.shape}. {info.source}.")
        return images, labels


DIGITS = Dataset(
    DatasetInfo(
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
    load,
)
