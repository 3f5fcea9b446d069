"""Data sets too large for memory: worker processes read and decode images while the model trains."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from regrow.data.files import DataError
from regrow.data.images import Augmentation, evenly, holdout_indices
from regrow.data.parquet import decode
from regrow.data.random import Indices, Stream, Words, coins, permutation, unit_floats, words
from regrow.data.registry import DatasetInfo

# Number of row groups whose images are shuffled together, and that a process keeps in memory.
WINDOW = 16

_TRIES = 10
_DRAWS = 4 * _TRIES + 1


class Reader(Protocol):
    """Reads encoded images by number."""

    @property
    def blocks(self) -> Indices | None:
        """The block of each image, or None if images can be read in any order."""

    def read(self, row: int) -> bytes | None:
        """Return the encoded image."""

    def where(self, row: int) -> str:
        """Return the location of the image, for error messages."""


@dataclass(frozen=True, eq=False)
class ImageStream:
    """A data set with labels in memory and images on disk.

    With augmentation, an image is a random part of the original (8 to 100 % of its area, 3:4 to 4:3) scaled to size,
    and flipped with probability 1/2; without, it is the central square of 7/8 of the shorter side. `rows` are the rows
    of `reader` that belong to the set; `workers` is the number of decoding processes (0: the calling process).
    """

    info: DatasetInfo
    labels: Tensor
    classes: tuple[str, ...]
    reader: Reader
    rows: Indices
    workers: int
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<ImageStream {self.info.name}: {len(self):,} images on disk, {len(self.classes):,} classes>"

    def take(self, indices: Indices) -> ImageStream:
        """Return the images at `indices`, in that order, as a set."""
        return replace(self, rows=self.rows[indices], labels=self.labels[torch.from_numpy(indices)])

    def limit(self, count: int) -> ImageStream:
        """Return `count` images spread evenly over the set."""
        return self.take(evenly(count, len(self)))

    def split(self, holdout: int, *, seed: int = 0) -> tuple[ImageStream, ImageStream]:
        """Return a training set and a validation set of `holdout` images chosen by `seed`."""
        rest, held = holdout_indices(holdout, len(self), seed)
        return self.take(rest), self.take(held)

    def to(self, device: torch.device | str) -> ImageStream:
        """Return the set with its batches on `device`."""
        return replace(self, device=str(device))

    def order(self, seed: int, epoch: int) -> Indices:
        """Return the order of the images in an epoch.

        Parquet files are read by row group, so groups are shuffled, and then the images of every `WINDOW` consecutive
        groups. Separate image files are shuffled without this restriction.
        """
        draws = words(seed, epoch, Stream.ORDER, len(self))
        if self.reader.blocks is None:
            return np.argsort(draws, kind="stable")
        places = np.argsort(permutation(seed, epoch, Stream.BLOCKS, int(self.reader.blocks[-1]) + 1))
        return np.lexsort((draws, places[self.reader.blocks[self.rows]] // WINDOW))

    def fetch(self, batches: Sequence[Indices], augmentation: Augmentation | None) -> Generator[tuple[Tensor, Tensor]]:
        """Yield (uint8 images, labels) for each array of indices.

        The workers stop with the generator: when it is exhausted, closed or deleted, or raises.
        """
        loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
            _Samples(self, augmentation),
            batch_sampler=batches,  # type: ignore[arg-type]
            # No more workers than batches.
            num_workers=min(self.workers, len(batches)),
            pin_memory=self.device.startswith("cuda"),
            # Without a generator, the loader would change the state of the global one.
            generator=torch.Generator(),
        )
        with _workers_of(loader) as pairs:
            for images, labels in pairs:
                yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


@contextmanager
def _workers_of(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """Iterate over `loader`, and stop its processes at the end of the block.

    Otherwise the workers would live until the cyclic garbage collector runs, because the traceback of a worker's error
    refers to the iterator. Until then, a thread could write to a pipe that is already closed, or to a pipe of the next
    loader with the same file descriptor. Processes forked in the meantime would also try to stop the workers.
    """
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        # torch has no public function for this; an iterator without workers has nothing to stop.
        getattr(iterator, "_shutdown_workers", lambda: None)()


class _Samples(Dataset[tuple[Tensor, Tensor]]):
    """Reads, decodes, crops and scales one image, in a worker process."""

    def __init__(self, stream: ImageStream, augmentation: Augmentation | None) -> None:
        self._stream, self._augmentation = stream, augmentation

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        stream, augmentation = self._stream, self._augmentation
        row = int(stream.rows[index])
        try:
            picture = decode(stream.reader.read(row), stream.info.channels)
        except DataError as error:
            raise DataError(f"{stream.reader.where(row)}: {error}. {stream.info.source}.") from error
        width, height = picture.size
        if augmentation is None:
            box, flipped = central_box(width, height), False
        else:
            draws = words(augmentation.seed, augmentation.epoch, Stream.AUGMENT, _DRAWS, index=int(index))
            box, flipped = random_box(width, height, draws[1:]), bool(coins(draws[:1]))
        return _pixels(picture, stream.info, box, flipped), stream.labels[index]


Box = tuple[float, float, float, float]


def central_box(width: int, height: int) -> Box:
    """Return the central square of 7/8 of the shorter side: 224 of 256 pixels."""
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, draws: Words) -> Box:
    """Return a random part of the image (Szegedy et al., 2015): the first of ten tries that fits into it.

    If all tries fail, the image is very wide or very tall: return its largest central part with an allowed ratio.
    """
    area, shape, x, y = unit_floats(draws).reshape(4, _TRIES)
    pixels = width * height * (0.08 + 0.92 * area)
    ratio = np.exp((2 * shape - 1) * math.log(4 / 3))
    widths, heights = np.rint(np.sqrt(pixels * ratio)), np.rint(np.sqrt(pixels / ratio))
    fits = np.flatnonzero((widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height))
    if len(fits):
        i = fits[0]
        left = math.floor(x[i] * (width - widths[i] + 1))
        top = math.floor(y[i] * (height - heights[i] + 1))
        return left, top, left + float(widths[i]), top + float(heights[i])
    w, h = min(width, height * 4 / 3), min(height, width * 4 / 3)
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def _pixels(picture: Any, info: DatasetInfo, box: Box, flipped: bool) -> Tensor:
    scaled = picture.resize((info.size, info.size), resample=2, box=box)  # 2 is bilinear, with antialiasing
    pixels = np.asarray(scaled).reshape(info.size, info.size, info.channels).transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels[:, :, ::-1] if flipped else pixels))
