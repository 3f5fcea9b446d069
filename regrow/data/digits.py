"""The digits that come with the package, so that everything can be tried without a download.

8x8 images of handwritten digits, the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin
and C. Kaynak (1998), UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, licensed CC BY 4.0.
Each pixel counts the set pixels in a 4x4 block of a 32x32 bitmap (0 to 16) and is scaled by 15 here.
The split is fixed: in UCI's order the first 1,297 images train and the last 500 test.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from zipfile import BadZipFile

import numpy as np
import torch

from regrow.data.catalog import Info
from regrow.data.errors import DataError, broken
from regrow.data.images import ImageSet


def load(info: Info, split: str) -> ImageSet:
    """Return the "train" or "test" part of the embedded digits."""
    images, labels = _read(info)
    part = slice(None, info.train) if split == "train" else slice(info.train, None)
    return ImageSet(
        info=info,
        images=torch.from_numpy(images[part, None] * np.uint8(15)),
        labels=torch.from_numpy(labels[part].astype(np.int64)),
        classes=tuple("0123456789"),
    )


def _read(info: Info) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], ...]:
    with as_file(files("regrow.data") / "digits.npz") as path:
        try:
            with np.load(path, allow_pickle=False) as archive:
                images, labels = archive["images"], archive["labels"]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise broken(path, f"cannot be read ({error})", f"{info.source}.") from error
        if images.shape != (info.train + info.test, 8, 8) or labels.shape != (info.train + info.test,):
            raise DataError(f"{path}: holds images of shape {images.shape}. {info.source}.")
        return images, labels
