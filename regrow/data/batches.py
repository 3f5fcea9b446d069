"""The batches of an epoch: the same ones every time, from any start, on any number of processes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from regrow.data.augment import Normalise
from regrow.data.catalog import Info
from regrow.data.draws import Indices, check_counter
from regrow.data.images import View


class Source(Protocol):
    """What batches are made from: a set in memory or a stream of files."""

    @property
    def info(self) -> Info:
        """The data set's facts."""

    def __len__(self) -> int: ...

    def order(self, seed: int, epoch: int) -> Indices:
        """Return the order in which the epoch visits the images."""

    def fetch(self, batches: Sequence[Indices], view: View | None) -> Generator[tuple[Tensor, Tensor]]:
        """Yield (uint8 images, labels) for each array of indices, augmented as `view` says."""


@dataclass(frozen=True)
class Batches:
    """The batches of every epoch of `source`, each a pair (normalised images, labels).

    The order of an epoch and what happens to each image depend on (seed, epoch, index) and on nothing else,
    so an epoch can be started in its middle at no cost and repeated bit for bit.
    `batch_size` is the size of the *global* batch: of each batch, process `rank` of `world` sees its own
    share, and the shares together are the batch that a single process would see. Shares of one batch differ by
    at most one image in size; where that matters, average with the weight `len(y)`.

    >>> for x, y in Batches(load("digits", "train"), 128, seed=1).epoch(0): ...
    >>> for x, y in Batches.evaluation(load("digits", "test"), 500): ...
    """

    source: Source
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
        source: Source,
        batch_size: int,
        *,
        rank: int = 0,
        world: int = 1,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> Batches:
        """Return batches of every image as it is, in the order of the data set: what one evaluates on."""
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
                f"{self.source.info.name} has {len(self.source):,} images here, which give no batch of "
                f"{self.batch_size}: pass a smaller batch_size or drop_last=False"
            )
        self._check_shares()

    def __len__(self) -> int:
        images, size = len(self.source), self.batch_size
        return images // size if self.drop_last else -(-images // size)

    def images(self, batch: int) -> int:
        """Return how many images batch number `batch` of an epoch has, the shares of all processes together."""
        return min(self.batch_size, len(self.source) - batch * self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over epoch 0, which is every epoch where nothing is shuffled or augmented."""
        return self.epoch(0)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches of `epoch` from batch number `start` on."""
        check_counter("epoch", epoch)
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be in [0, {len(self)}], the number of batches in an epoch, got {start}")
        view = View(self.seed, epoch) if self.augment else None
        pairs = self.source.fetch(self._shares(epoch, start), view)
        return self._normalised(pairs)

    def _normalised(self, pairs: Generator[tuple[Tensor, Tensor]]) -> Generator[tuple[Tensor, Tensor]]:
        normalise = Normalise(self.source.info, dtype=self.dtype, channels_last=self.channels_last)
        with closing(pairs):
            for images, labels in pairs:
                yield normalise(images), labels

    def _shares(self, epoch: int, start: int) -> list[Indices]:
        """Return this process's indices in each batch from `start` on."""
        images = len(self.source)
        order = self.source.order(self.seed, epoch) if self.shuffle else np.arange(images, dtype=np.int64)
        firsts = range(start * self.batch_size, len(self) * self.batch_size, self.batch_size)
        return [order[first : first + self.batch_size][self.rank :: self.world] for first in firsts]

    def _check_shares(self) -> None:
        """Refuse a last batch that leaves a process with nothing, which would stall the others."""
        smallest = self.batch_size
        if not self.drop_last:
            smallest = len(self.source) - (len(self) - 1) * self.batch_size
        if smallest < self.world:
            raise ValueError(
                f"a batch of {smallest} images cannot be shared by {self.world} processes: "
                f"{len(self.source):,} images in batches of {self.batch_size}. "
                "Pass drop_last=True or another batch_size"
            )
