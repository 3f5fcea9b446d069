"""Reproducible batches: the same in every run, from any start, on any number of processes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from torch import Tensor

from regrow.data.images import Augmentation, ImageSet, Normalize
from regrow.data.random import Indices, check_counter
from regrow.data.stream import ImageStream


@dataclass(frozen=True)
class Batches:
    """The batches of every epoch of `source`, each a pair (normalized images, labels).

    Order and augmentation depend only on (seed, epoch, index), so an epoch can start at any batch and is bit-identical
    when repeated. `batch_size` is the size of the *global* batch: process `rank` of `world` gets a part of each batch,
    and the parts together are the batch of a single process. The sizes of parts differ by at most one image; if that
    matters, average with the weight `len(y)`.

    >>> for x, y in Batches(load("digits", "train"), 128, seed=1).epoch(0): ...
    >>> for x, y in Batches.evaluation(load("digits", "test"), 500): ...
    """

    source: ImageSet | ImageStream
    batch_size: int
    _: KW_ONLY
    seed: int = 0
    shuffle: bool = True
    augment: bool = True
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    @classmethod
    def evaluation(
        cls,
        source: ImageSet | ImageStream,
        batch_size: int,
        *,
        rank: int = 0,
        world: int = 1,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> Batches:
        """Return batches for evaluation: every image without augmentation, in the order of the data set."""
        return cls(
            source,
            batch_size,
            shuffle=False,
            augment=False,
            rank=rank,
            world=world,
            dtype=dtype,
            channels_last=channels_last,
        )

    def __post_init__(self) -> None:
        check_counter("seed", self.seed)
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be in [0, world) with world at least 1, got {self.rank} of {self.world}")
        if not len(self):
            raise ValueError(
                f"{self.source.info.name} has {len(self.source):,} images, not enough for a batch of "
                f"{self.batch_size}: pass a smaller batch_size or drop_last=False"
            )
        self._check_parts()

    def __len__(self) -> int:
        images, size = len(self.source), self.batch_size
        return images // size if self.drop_last else -(-images // size)

    def images(self, batch: int) -> int:
        """Return the number of images in batch number `batch` of an epoch, over all processes."""
        return min(self.batch_size, len(self.source) - batch * self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over epoch 0; without shuffling and augmentation, all epochs are equal."""
        return self.epoch(0)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches of `epoch`, starting at batch number `start`."""
        check_counter("epoch", epoch)
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be in [0, {len(self)}], the number of batches in an epoch, got {start}")
        augmentation = Augmentation(self.seed, epoch) if self.augment else None
        pairs = self.source.fetch(self._parts(epoch, start), augmentation)
        return self._normalized(pairs)

    def _normalized(self, pairs: Generator[tuple[Tensor, Tensor]]) -> Generator[tuple[Tensor, Tensor]]:
        normalize = Normalize(self.source.info, dtype=self.dtype, channels_last=self.channels_last)
        with closing(pairs):
            for images, labels in pairs:
                yield normalize(images), labels

    def _parts(self, epoch: int, start: int) -> list[Indices]:
        """Return this process's indices in each batch, starting at batch `start`."""
        images = len(self.source)
        order = self.source.order(self.seed, epoch) if self.shuffle else np.arange(images, dtype=np.int64)
        firsts = range(start * self.batch_size, len(self) * self.batch_size, self.batch_size)
        return [order[first : first + self.batch_size][self.rank :: self.world] for first in firsts]

    def _check_parts(self) -> None:
        """Refuse a last batch with fewer images than processes: those without images would block the others."""
        smallest = self.images(len(self) - 1)
        if smallest < self.world:
            raise ValueError(
                f"a batch of {smallest} images cannot be split among {self.world} processes: "
                f"{len(self.source):,} images in batches of {self.batch_size}. "
                "Pass drop_last=True or another batch_size"
            )
