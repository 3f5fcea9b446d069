"""A data set small enough to live in memory as one tensor of bytes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regrow.data.augment import crop_and_flip
from regrow.data.catalog import Info
from regrow.data.draws import Indices, Stream, permutation, words


@dataclass(frozen=True)
class View:
    """Which augmentation is seen: the same (seed, epoch) always shows each image the same way."""

    seed: int
    epoch: int


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (N, C, H, W) uint8 and labels (N,) int64, with the facts of the data set and its class names.

    Any images can be used: `ImageSet(info=Info(...), images=..., labels=..., classes=("cat", "dog"))`.
    """

    info: Info
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> ImageSet:
        """Return the set of the images at `indices`, in that order."""
        chosen = torch.from_numpy(np.ascontiguousarray(indices)).to(self.images.device)
        return replace(self, images=self.images.index_select(0, chosen), labels=self.labels[chosen])

    def limit(self, count: int) -> ImageSet:
        """Return `count` images spread evenly over the set (a quick look, or a smoke test)."""
        return self.take(evenly(count, len(self)))

    def split(self, holdout: int, *, seed: int = 0) -> tuple[ImageSet, ImageSet]:
        """Return (the rest, `holdout` images chosen by `seed`): train on the one, tune on the other.

        >>> train, validation = load("cifar10", "train").split(5_000)
        """
        rest, held = holdout_indices(holdout, len(self), seed)
        return self.take(rest), self.take(held)

    def to(self, device: torch.device | str) -> ImageSet:
        """Return the set with its tensors on `device`; batches are then made there."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def order(self, seed: int, epoch: int) -> Indices:
        """Return the order in which the epoch visits the images."""
        return permutation(seed, epoch, Stream.ORDER, len(self))

    def fetch(self, batches: Sequence[Indices], view: View | None) -> Generator[tuple[Tensor, Tensor]]:
        """Yield (uint8 images, labels) for each array of indices, augmented as `view` says."""
        draws = None if view is None else words(view.seed, view.epoch, Stream.AUGMENT, len(self))
        for indices in batches:
            chosen = torch.from_numpy(indices).to(self.images.device)
            images = self.images.index_select(0, chosen)  # copies whole images, unlike indexing
            if draws is not None:
                images = crop_and_flip(images, draws[indices], pad=self.info.pad, flip=self.info.flip)
            yield images, self.labels[chosen]


def evenly(count: int, total: int) -> Indices:
    """Return `count` indices spread evenly over range(total)."""
    if not 1 <= count <= total:
        raise ValueError(f"limit must be between 1 and the {total:,} images there are, got {count}")
    return np.arange(count, dtype=np.int64) * total // count


def holdout_indices(holdout: int, total: int, seed: int) -> tuple[Indices, Indices]:
    """Return (rest, held out): a random partition of range(total), each part in ascending order."""
    if not 1 <= holdout < total:
        raise ValueError(f"holdout must be at least 1 and leave some of the {total:,} images, got {holdout}")
    order = permutation(seed, 0, Stream.HOLDOUT, total)
    return np.sort(order[holdout:]), np.sort(order[:holdout])


def _check(images: ImageSet) -> None:
    """Refuse tensors that batches could not be made from."""
    info, pixels, labels = images.info, images.images, images.labels
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
    if len(images.classes) != info.classes:
        raise ValueError(f"{info.name} has {info.classes} classes, got {len(images.classes)} class names")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < info.classes:
        raise ValueError(
            f"labels of {info.name} must be in [0, {info.classes}), "
            f"got values from {int(labels.min())} to {int(labels.max())}"
        )
