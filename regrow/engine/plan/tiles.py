"""Which tiles the kernels are built for, and a rule for choosing one without measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum


@dataclass(frozen=True, order=True)
class Tile:
    """What a convolution keeps in registers: output channels `together`, times `down` x `across` vectors of pixels.

    `blocks` is in how many blocks the input channels are walked.
    """

    together: int
    down: int
    across: int
    blocks: int = 1

    @property
    def vectors(self) -> int:
        """Vectors of pixels."""
        return self.down * self.across

    @property
    def sums(self) -> int:
        """Registers that it takes."""
        return self.together * self.vectors


class Sharing(IntEnum):
    """Whose output channels threads divide: `enum sharing` of kernels.c."""

    NO_CHANNELS = 0
    OF_FEW_TILES = 1
    OF_ALL_TILES = 2


Shape = tuple[int, int, int, int]
"""A kernel: together, down, across, and how many columns apart the pixels are."""

_Tiles = dict[int, dict[int, tuple[int, ...]]]
_PIXELS: _Tiles = {
    1: {1: (1, 2, 4, 7, 8, 14), 2: (1, 2, 4, 7, 8), 4: (1, 2, 4), 7: (1, 2)},
    2: {1: (1, 2, 4, 7, 8), 2: (1, 2, 4), 4: (1, 2)},
    4: {1: (1, 2, 4), 2: (1, 2), 4: (1,)},
}
_STRIDED: _Tiles = {1: {1: (2, 4, 7, 8), 2: (2, 4), 4: (2,)}, 2: {1: (2, 4, 7), 2: (2,)}, 4: {1: (2,), 2: (2,)}}

SHAPES: tuple[Shape, ...] = tuple(
    (together, down, across, stride)
    for stride, tiles in ((1, _PIXELS), (2, _STRIDED))
    for together, rows in tiles.items()
    for down, columns in rows.items()
    for across in columns
)
"""Every kernel that is built. A tile needs those of one row and of one column, too, for what is left at the edges."""


def shapes_of(tile: Tile, stride_cols: int) -> list[Shape]:
    """The kernels that a tile needs; pixels of a single column are no columns apart."""
    edges = {(tile.down, tile.across), (tile.down, 1), (1, tile.across), (1, 1)}
    return [(tile.together, down, across, 1 if across == 1 else stride_cols) for down, across in edges]


def most_sums(lanes: int) -> int:
    """Sums that fit in the registers, of which AVX-512 has 32 and others may have 16."""
    return 16 if lanes == 16 else 12


def fitting(rows: int, cols: int, lanes: int, *, stride_cols: int = 1) -> list[Tile]:
    """The tiles that make sense for a region."""
    tiles = {Tile(together, down, across) for together, down, across, _ in SHAPES}
    return [
        tile
        for tile in sorted(tiles)
        if tile.down <= rows
        and tile.across <= cols
        and tile.sums <= most_sums(lanes)
        and set(shapes_of(tile, stride_cols)) <= set(SHAPES)
    ]


@dataclass(frozen=True)
class Problem:
    """What the choice of a tile depends on."""

    rows: int
    cols: int
    inputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    lanes: int
    nonzeros_per_output: float
    threads: int = 1
    outputs: int = 1
    residual: bool = False

    @property
    def family(self) -> Problem:
        """The same for layers so much alike that what suits one suits the other."""
        rounded = round(math.log(max(1.0, self.nonzeros_per_output), 1.25))
        return replace(self, nonzeros_per_output=1.25**rounded)

    def footprint(self, tile: Tile) -> int:
        """Bytes of input that one tile reads."""
        down = tile.down * self.stride[0] + max(0, self.kernel[0] - self.stride[0])
        across = tile.across * self.stride[1] + max(0, self.kernel[1] - self.stride[1])
        return self.inputs * down * across * self.lanes * 4

    def unevenness(self, tile: Tile) -> float:
        """How much longer the slowest thread takes than the average, if threads divide tiles: see `conv_share`."""
        (down, below), (across, beside) = divmod(self.rows, tile.down), divmod(self.cols, tile.across)
        rest = ((below * across, tile.across), (down * beside, tile.down), (below * beside, 1))
        own = [
            _share(down * across, part, self.threads) * tile.vectors
            + sum(_share(count, self.threads - 1 - part, self.threads) * vectors for count, vectors in rest)
            for part in range(self.threads)
        ]
        return max(own) * self.threads / (self.rows * self.cols)

    def sharing(self, tile: Tile) -> Sharing:
        """Whose output channels threads divide.

        Tiles are better: what a thread reads is then mostly what it wrote itself, in its own core's cache.
        """
        uneven, tiles = self.unevenness(tile), (self.rows // tile.down) * (self.cols // tile.across)
        if uneven > 1.34 or tiles < self.threads:
            return Sharing.OF_ALL_TILES
        left_over = self.rows % tile.down or self.cols % tile.across
        # Groups of channels that stay within a thread's part have more zeros to fill up, for all tiles.
        enough = self.outputs >= (2 if tile.together == 1 else 32 * tile.together) * self.threads
        return Sharing.OF_FEW_TILES if uneven > 1 and enough and not left_over else Sharing.NO_CHANNELS

    def waiting(self, tile: Tile) -> float:
        """How much longer a thread takes, with those it waits for, than if all was divided evenly."""
        uneven, sharing = self.unevenness(tile), self.sharing(tile)
        if sharing is Sharing.OF_ALL_TILES:
            return 1.5
        return (1 + uneven) / 2 if sharing is Sharing.OF_FEW_TILES else uneven


def _share(count: int, part: int, parts: int) -> int:
    """How many of `count` pieces a thread gets: `share_of` of kernels.c."""
    return count * (part + 1) // parts - count * part // parts


FIRST_LEVEL = 26 * 1024
"""Bytes of input that stay in the first-level cache beside weights and results."""


def cost(problem: Problem, tile: Tile) -> float:
    """Estimated cycles per weight and pixel vector, to compare tiles with; fitted to nothing but common sense."""
    weights = max(1.0, problem.nonzeros_per_output)
    work = tile.vectors / 2 + 0.5
    latency = 4 / tile.together
    per_group = 12 / tile.together + 2 * tile.vectors * tile.blocks
    wasted = -(-problem.rows // tile.down) * tile.down * -(-problem.cols // tile.across) * tile.across
    spill = 2.0 if problem.footprint(tile) / tile.blocks > 2 * FIRST_LEVEL else 1.0
    busy = max(work, latency) * spill + per_group / weights
    return busy / tile.vectors * wasted / (problem.rows * problem.cols) * problem.waiting(tile)


def candidates(problem: Problem) -> list[Tile]:
    """All tiles that make sense, the cheapest by `cost` first, in one block or in blocks that fit the nearest cache."""
    found = set()
    for tile in fitting(problem.rows, problem.cols, problem.lanes, stride_cols=problem.stride[1]):
        for size in (FIRST_LEVEL // 2, FIRST_LEVEL, 3 * FIRST_LEVEL // 2):
            blocks = min(problem.inputs, -(-problem.footprint(tile) // size))
            found |= {tile, Tile(tile.together, tile.down, tile.across, blocks)}
    return sorted(found, key=lambda tile: (cost(problem, tile), tile))


def choose(problem: Problem) -> Tile:
    """The cheapest tile by `cost`."""
    return candidates(problem)[0]
