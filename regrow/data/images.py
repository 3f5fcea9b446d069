"""Data sets in memory, and their augmentation: crop, flip and normalize whole batches at once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regrow.data.files import Bytes, broken
from regrow.data.random import Indices, Stream, Words, below, coins, permutation, words
from regrow.data.registry import DatasetInfo


@dataclass(frozen=True)
class Augmentation:
    """A random augmentation: the same (seed, epoch) always changes each image in the same way."""

    seed: int
    epoch: int


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A data set in memory: images (N, C, H, W) uint8, labels (N,) int64, and class names.

    For your own images: `ImageSet(info=DatasetInfo(...), images=..., labels=..., classes=("cat", "dog"))`.
    """

    info: DatasetInfo
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        info, pixels, labels = self.info, self.images, self.labels
        shape = (info.channels, info.size, info.size)
        if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != shape:
            raise ValueError(
                f"images of {info.name} must be uint8 of shape (N, {', '.join(map(str, shape))}), "
                f"got {pixels.dtype} of shape {tuple(pixels.shape)}"
            )
        if labels.dtype != torch.int64 or labels.shape != (len(pixels),):
            raise ValueError(
                f"labels of {info.name} must be int64 of shape ({len(pixels)},), "
                f"got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if len(self.classes) != info.classes:
            raise ValueError(f"{info.name} has {info.classes} classes, got {len(self.classes)} class names")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < info.classes:
            raise ValueError(
                f"labels of {info.name} must be in [0, {info.classes}), "
                f"got values from {int(labels.min())} to {int(labels.max())}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.images.shape[1:]))
        return f"<ImageSet {self.info.name}: {len(self):,} images of {shape}, {len(self.classes):,} classes>"

    def take(self, indices: Indices) -> ImageSet:
        """Return the images at `indices`, in that order, as a set."""
        chosen = torch.from_numpy(np.ascontiguousarray(indices)).to(self.images.device)
        return replace(self, images=self.images.index_select(0, chosen), labels=self.labels[chosen])

    def limit(self, count: int) -> ImageSet:
        """Return `count` images spread evenly over the set."""
        return self.take(evenly(count, len(self)))

    def split(self, holdout: int, *, seed: int = 0) -> tuple[ImageSet, ImageSet]:
        """Return a training set and a validation set of `holdout` images chosen by `seed`.

        >>> train, validation = load("cifar10", "train").split(5_000)
        """
        rest, held = holdout_indices(holdout, len(self), seed)
        return self.take(rest), self.take(held)

    def to(self, device: torch.device | str) -> ImageSet:
        """Return the set with its tensors, and therefore its batches, on `device`."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def order(self, seed: int, epoch: int) -> Indices:
        """Return the order of the images in an epoch."""
        return permutation(seed, epoch, Stream.ORDER, len(self))

    def fetch(self, batches: Sequence[Indices], augmentation: Augmentation | None) -> Generator[tuple[Tensor, Tensor]]:
        """Yield (uint8 images, labels) for each array of indices."""
        draws = None
        if augmentation is not None:
            draws = words(augmentation.seed, augmentation.epoch, Stream.AUGMENT, len(self))
        for indices in batches:
            chosen = torch.from_numpy(indices).to(self.images.device)
            images = self.images.index_select(0, chosen)  # copies whole images, unlike indexing
            if draws is not None:
                images = crop_and_flip(images, draws[indices], pad=self.info.pad, flip=self.info.flip)
            yield images, self.labels[chosen]


def evenly(count: int, total: int) -> Indices:
    """Return `count` indices spread evenly over range(total)."""
    if not 1 <= count <= total:
        raise ValueError(f"limit must be between 1 and the {total:,} images of the set, got {count}")
    return np.arange(count, dtype=np.int64) * total // count


def holdout_indices(holdout: int, total: int, seed: int) -> tuple[Indices, Indices]:
    """Return (rest, held out): a random partition of range(total), each part in ascending order."""
    if not 1 <= holdout < total:
        raise ValueError(f"holdout must be at least 1 and leave some of the {total:,} images, got {holdout}")
    order = permutation(seed, 0, Stream.HOLDOUT, total)
    return np.sort(order[holdout:]), np.sort(order[:holdout])


def image_set(info: DatasetInfo, path: Path, images: Bytes, labels: Indices, classes: tuple[str, ...]) -> ImageSet:
    """Return arrays from the file `path` as a set; a `DataError` names the file if they do not fit together."""
    try:
        return ImageSet(info, torch.from_numpy(images), torch.from_numpy(labels), classes)
    except ValueError as error:
        raise broken(path, str(error), f"{info.source}.") from error


def crop_and_flip(images: Tensor, draws: Words, *, pad: int, flip: bool) -> Tensor:
    """Flip half of the images if `flip`, and shift each one by up to `pad` pixels; the border is black.

    `images` is (B, C, H, W). `draws` has one random word per image, which determines its augmentation.
    """
    if flip:
        chosen = torch.from_numpy(np.flatnonzero(coins(draws))).to(images.device)
        images = images.index_copy(0, chosen, images.index_select(0, chosen).flip(3))
    if pad:
        rows = torch.from_numpy(below(draws, 2 * pad + 1)).to(images.device)
        columns = torch.from_numpy(below(draws, 2 * pad + 1, shift=24)).to(images.device)
        images = _crop(F.pad(images, (pad, pad, pad, pad)), rows, columns, images.shape)
    return images


def _crop(padded: Tensor, rows: Tensor, columns: Tensor, shape: torch.Size) -> Tensor:
    """Cut the window of `shape` that starts at (row, column) out of each padded image.

    A line of a window is contiguous in the padded batch, so one `index_select` from a view of all such runs copies
    whole lines. This is several times faster than indexing with three tensors.
    """
    count, channels, height, width = shape
    device = padded.device
    planes = torch.arange(count * channels, device=device).view(count, channels, 1)
    lines = planes * padded.shape[2] + rows.view(-1, 1, 1) + torch.arange(height, device=device)
    starts = lines * padded.shape[3] + columns.view(-1, 1, 1)
    return padded.reshape(-1).unfold(0, width, 1).index_select(0, starts.view(-1)).view(shape)


class Normalize:
    """Converts uint8 images to floating point with mean 0 and standard deviation 1 per channel."""

    def __init__(self, info: DatasetInfo, *, dtype: torch.dtype = torch.float32, channels_last: bool = False) -> None:
        std = torch.tensor(info.std).view(-1, 1, 1)
        self._scale = 1 / (255 * std)
        self._shift = -torch.tensor(info.mean).view(-1, 1, 1) / std
        self._dtype = dtype
        self._format = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, images: Tensor) -> Tensor:
        """Return a normalized copy of (B, C, H, W) uint8 `images`, computed in float32 and then rounded."""
        if self._scale.device != images.device:
            self._scale, self._shift = self._scale.to(images.device), self._shift.to(images.device)
        values = images.to(torch.float32).mul_(self._scale).add_(self._shift)
        return values.to(self._dtype).contiguous(memory_format=self._format)
