"""A data set too large for memory: images are read and decoded by worker processes while the model trains."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from regrow.data.catalog import Info
from regrow.data.draws import Indices, Stream, Words, coins, permutation, uniform, words
from regrow.data.encoded import WINDOW, Reader
from regrow.data.errors import DataError
from regrow.data.images import View, evenly, holdout_indices
from regrow.data.parquet import decode

_TRIES = 10
_DRAWS = 4 * _TRIES + 1


@dataclass(frozen=True, eq=False)
class ImageStream:
    """Labels in memory and images on the disk, seen at the data set's size.

    Augmented, an image is a random part of it (8 to 100 % of its area, 3:4 to 4:3) scaled to size, mirrored in half
    the cases; otherwise it is the central 7/8 of its shorter side. `rows` are the rows of `reader` that belong to the
    set, `workers` the number of processes that decode (0: the calling one).
    """

    info: Info
    labels: Tensor
    classes: tuple[str, ...]
    reader: Reader
    rows: Indices
    workers: int
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> ImageStream:
        """Return the set of the images at `indices`, in that order."""
        return replace(self, rows=self.rows[indices], labels=self.labels[torch.from_numpy(indices)])

    def limit(self, count: int) -> ImageStream:
        """Return `count` images spread evenly over the set."""
        return self.take(evenly(count, len(self)))

    def split(self, holdout: int, *, seed: int = 0) -> tuple[ImageStream, ImageStream]:
        """Return (the rest, `holdout` images chosen by `seed`)."""
        rest, held = holdout_indices(holdout, len(self), seed)
        return self.take(rest), self.take(held)

    def to(self, device: torch.device | str) -> ImageStream:
        """Return the set whose batches arrive on `device`."""
        return replace(self, device=str(device))

    def order(self, seed: int, epoch: int) -> Indices:
        """Return the order in which the epoch visits the images.

        Rows of parquet files can only be read by the group, so groups are shuffled and then the images of every
        `WINDOW` successive groups with each other; files of their own are shuffled without bounds.
        """
        draws = words(seed, epoch, Stream.ORDER, len(self))
        if self.reader.blocks is None:
            return np.argsort(draws, kind="stable")
        places = np.argsort(permutation(seed, epoch, Stream.BLOCKS, int(self.reader.blocks[-1]) + 1))
        return np.lexsort((draws, places[self.reader.blocks[self.rows]] // WINDOW))

    def fetch(self, batches: Sequence[Indices], view: View | None) -> Generator[tuple[Tensor, Tensor]]:
        """Yield (uint8 images, labels) for each array of indices, augmented as `view` says.

        The workers end with the generator: when it is exhausted, closed or dropped, or raises.
        """
        loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
            _Samples(self, view),
            batch_sampler=batches,  # type: ignore[arg-type]
            # A worker without a batch would only be started and stopped.
            num_workers=min(self.workers, len(batches)),
            pin_memory=self.device.startswith("cuda"),
            # Without a generator of its own, the loader would draw from the global one.
            generator=torch.Generator(),
        )
        with _workers_of(loader) as pairs:
            for images, labels in pairs:
                yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


@contextmanager
def _workers_of(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """Iterate over `loader`, and stop its processes at the end of the block rather than at some later time.

    An error of a worker refers to the iterator through its traceback. The cyclic garbage collector would then stop the
    workers, in any order with closing the pipes to them: a thread that still writes finds its pipe closed, or a pipe of
    the next loader under the same number. Processes forked before that would even try to stop them as well.
    """
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        # torch has no public way; an iterator without workers has nothing to stop.
        getattr(iterator, "_shutdown_workers", lambda: None)()


class _Samples(Dataset[tuple[Tensor, Tensor]]):
    """What a worker process does: read, decode, cut and scale one image."""

    def __init__(self, stream: ImageStream, view: View | None) -> None:
        self._stream, self._view = stream, view

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        stream, view = self._stream, self._view
        row = int(stream.rows[index])
        try:
            picture = decode(stream.reader.read(row), stream.info.channels)
        except DataError as error:
            raise DataError(f"{stream.reader.where(row)}: {error}. {stream.info.source}.") from error
        width, height = picture.size
        if view is None:
            box, mirrored = central_box(width, height), False
        else:
            draws = words(view.seed, view.epoch, Stream.AUGMENT, _DRAWS, index=int(index))
            box, mirrored = random_box(width, height, draws[1:]), bool(coins(draws[:1]))
        return _pixels(picture, stream.info, box, mirrored), stream.labels[index]


Box = tuple[float, float, float, float]


def central_box(width: int, height: int) -> Box:
    """Return the central square of 7/8 of the shorter side: scaled to 224, the centre of the image scaled to 256."""
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, draws: Words) -> Box:
    """Return a random part of the image (Szegedy et al., 2015): the first of ten tries that lies within it.

    Images for which all tries fail are very long or very tall; of these it is the largest central part in bounds.
    """
    area, shape, x, y = uniform(draws).reshape(4, _TRIES)
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


def _pixels(picture: Any, info: Info, box: Box, mirrored: bool) -> Tensor:
    scaled = picture.resize((info.size, info.size), resample=2, box=box)  # 2 is bilinear, over the whole support
    pixels = np.asarray(scaled).reshape(info.size, info.size, info.channels).transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels[:, :, ::-1] if mirrored else pixels))
