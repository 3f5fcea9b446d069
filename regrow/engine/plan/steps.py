"""What a schedule is made of: buffers in memory, and steps that read and write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regrow.engine.frontend.graph import Conv, Linear, Node, Pool
from regrow.engine.plan.layout import IntArray, Planes


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory for `channels` images: planes, or plain row-major floats if `planes` is None.

    `external` buffers are the caller's; a buffer with a `root` is a part of it, from channel (or float) `first` on.
    """

    channels: int
    size: tuple[int, int]
    planes: Planes | None
    external: Literal["input", "output"] | None = None
    root: Buffer | None = None
    first: int = 0

    @property
    def pixels(self) -> int:
        """How many pixels each channel has."""
        return self.size[0] * self.size[1]

    @property
    def whole(self) -> Buffer:
        """The buffer that has a place of its own in the arena."""
        return self.root or self

    def index(self, y: IntArray, x: IntArray) -> IntArray:
        """Where pixels lie in a channel, counted in floats; -1 for those outside the image."""
        if self.planes is not None:
            return self.planes.index(y, x)
        inside = (y >= 0) & (y < self.size[0]) & (x >= 0) & (x < self.size[1])
        return np.where(inside, y * self.size[1] + x, -1)


@dataclass(frozen=True, eq=False)
class Step:
    """One operation on buffers; `node` is what it computes, or belongs to."""

    node: Node
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]


@dataclass(frozen=True, eq=False)
class ConvStep(Step):
    """reads = (x,) or (x, residual).

    With a `band`, it is computed so many rows at a time, together with the `followers` steps after it, or with the one
    that it follows.
    """

    node: Conv
    x: Buffer
    out: Buffer | None
    residual: Buffer | None
    tail: Buffer | None
    stride: tuple[int, int]
    band: int = 0
    followers: int = 0


@dataclass(frozen=True, eq=False)
class GatherStep(Step):
    """Copies each channel through a table of positions in floats (-1: `fill`); without a table, as it is.

    There is one table, or one for each share of the rows.
    """

    table: NDArray[np.int64] | None
    fill: float = 0.0


@dataclass(frozen=True, eq=False)
class HaloStep(Step):
    """Brings what the neighbouring regions hold to the edges of each region."""


@dataclass(frozen=True, eq=False)
class PoolStep(Step):
    """Windows of reads[0]."""

    node: Pool


@dataclass(frozen=True, eq=False)
class MeanStep(Step):
    """Channels to features."""


@dataclass(frozen=True, eq=False)
class LinearStep(Step):
    """Features to features."""

    node: Linear


@dataclass(frozen=True, eq=False)
class PointwiseStep(Step):
    """One or two operands, element by element."""


@dataclass(frozen=True)
class Schedule:
    """Steps in running order; the first reads the caller's input, the last writes the caller's output.

    With several `shares`, they compute one share of the image's rows; `boxes` are for the rows of an image that
    neighbouring shares need.
    """

    steps: tuple[Step, ...]
    lanes: int
    shares: int = 1
    boxes: Mapping[Buffer, Buffer] = field(default_factory=dict)
