"""Register tiles of convolutions: those that kernels are built for, and a cost rule that chooses without measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from regrow.engine.codegen.structs import ChannelSplit

if TYPE_CHECKING:
    from regrow.engine.ops.conv import ConvStep


@dataclass(frozen=True, order=True)
class Tile:
    """What a convolution keeps in registers: `channels` output channels of `rows` x `cols` vectors of pixels.

    `blocks` is the number of blocks in which the input channels are read.
    """

    channels: int
    rows: int
    cols: int
    blocks: int = 1

    @property
    def vectors(self) -> int:
        """Vectors of pixels."""
        return self.rows * self.cols

    @property
    def sums(self) -> int:
        """Number of registers."""
        return self.channels * self.vectors


Shape = tuple[int, int, int, int]
"""A kernel: channels, rows and columns of its tile, and the stride between columns."""

_Tiles = dict[int, dict[int, tuple[int, ...]]]
_PIXELS: _Tiles = {
    1: {1: (1, 2, 4, 7, 8, 14), 2: (1, 2, 4, 7, 8), 4: (1, 2, 4), 7: (1, 2)},
    2: {1: (1, 2, 4, 7, 8), 2: (1, 2, 4), 4: (1, 2)},
    4: {1: (1, 2, 4), 2: (1, 2), 4: (1,)},
}
_STRIDED: _Tiles = {1: {1: (2, 4, 7, 8), 2: (2, 4), 4: (2,)}, 2: {1: (2, 4, 7), 2: (2,)}, 4: {1: (2,), 2: (2,)}}

SHAPES: tuple[Shape, ...] = tuple(
    (channels, rows, cols, stride)
    for stride, tiles in ((1, _PIXELS), (2, _STRIDED))
    for channels, by_rows in tiles.items()
    for rows, columns in by_rows.items()
    for cols in columns
)
"""All kernels that are built. A tile also needs those of one row and of one column, for the remainder at the edges."""


def shapes_of(tile: Tile, stride_cols: int) -> list[Shape]:
    """Return the kernels that a tile needs; those of a single column have no stride."""
    edges = {(tile.rows, tile.cols), (tile.rows, 1), (1, tile.cols), (1, 1)}
    return [(tile.channels, rows, cols, 1 if cols == 1 else stride_cols) for rows, cols in edges]


def most_sums(lanes: int) -> int:
    """Return how many sums fit into the registers: AVX-512 has 32 of them, others may have 16."""
    return 16 if lanes == 16 else 12


def fitting(rows: int, cols: int, lanes: int, *, stride_cols: int = 1) -> list[Tile]:
    """Return the tiles that fit into a region and into the registers."""
    tiles = {Tile(*shape[:3]) for shape in SHAPES}
    return [
        tile
        for tile in sorted(tiles)
        if tile.rows <= rows
        and tile.cols <= cols
        and tile.sums <= most_sums(lanes)
        and set(shapes_of(tile, stride_cols)) <= set(SHAPES)
    ]


@dataclass(frozen=True)
class TileProblem:
    """The properties of a layer that the choice of its tile depends on."""

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
    def family(self) -> TileProblem:
        """The same problem with a rounded number of weights, so that similar layers are tuned together."""
        rounded = round(math.log(max(1.0, self.nonzeros_per_output), 1.25))
        return replace(self, nonzeros_per_output=1.25**rounded)

    def footprint(self, tile: Tile) -> int:
        """Return the bytes of input that one tile reads."""
        rows = tile.rows * self.stride[0] + max(0, self.kernel[0] - self.stride[0])
        cols = tile.cols * self.stride[1] + max(0, self.kernel[1] - self.stride[1])
        return self.inputs * rows * cols * self.lanes * 4

    def imbalance(self, tile: Tile) -> float:
        """Return the time of the slowest thread relative to the average, if threads split tiles as conv.c does."""
        (down, below), (across, beside) = divmod(self.rows, tile.rows), divmod(self.cols, tile.cols)
        rest = ((below * across, tile.cols), (down * beside, tile.rows), (below * beside, 1))
        own = [
            _part_of(down * across, part, self.threads) * tile.vectors
            + sum(_part_of(count, self.threads - 1 - part, self.threads) * vectors for count, vectors in rest)
            for part in range(self.threads)
        ]
        return max(own) * self.threads / (self.rows * self.cols)

    def channel_split(self, tile: Tile) -> ChannelSplit:
        """Return which tiles have their output channels split among threads.

        Splitting tiles is better: a thread then reads mostly pixels that it wrote itself, in its own core's cache.
        """
        uneven, tiles = self.imbalance(tile), (self.rows // tile.rows) * (self.cols // tile.cols)
        if uneven > 1.34 or tiles < self.threads:
            return ChannelSplit.ALL_TILES
        left_over = self.rows % tile.rows or self.cols % tile.cols
        # Groups of channels that do not cross from thread to thread need more padding with zeros, in all tiles.
        enough = self.outputs >= (2 if tile.channels == 1 else 32 * tile.channels) * self.threads
        return ChannelSplit.FEW_TILES if uneven > 1 and enough and not left_over else ChannelSplit.NO_TILES

    def slowdown(self, tile: Tile) -> float:
        """Return the estimated time relative to a perfectly even split."""
        uneven, split = self.imbalance(tile), self.channel_split(tile)
        if split is ChannelSplit.ALL_TILES:
            return 1.5
        return (1 + uneven) / 2 if split is ChannelSplit.FEW_TILES else uneven


def _part_of(count: int, part: int, parts: int) -> int:
    """Return how many of `count` pieces a thread gets: `part_of` of frame.h."""
    return count * (part + 1) // parts - count * part // parts


FIRST_LEVEL = 26 * 1024
"""Bytes of input that stay in the first-level cache beside weights and results."""


def cost(problem: TileProblem, tile: Tile) -> float:
    """Estimate the cycles per weight and vector of pixels, to compare tiles; a rule of thumb, not fitted to data."""
    weights = max(1.0, problem.nonzeros_per_output)
    work = tile.vectors / 2 + 0.5
    latency = 4 / tile.channels
    per_group = 12 / tile.channels + 2 * tile.vectors * tile.blocks
    wasted = -(-problem.rows // tile.rows) * tile.rows * -(-problem.cols // tile.cols) * tile.cols
    spill = 2.0 if problem.footprint(tile) / tile.blocks > 2 * FIRST_LEVEL else 1.0
    busy = max(work, latency) * spill + per_group / weights
    return busy / tile.vectors * wasted / (problem.rows * problem.cols) * problem.slowdown(tile)


def candidates(problem: TileProblem) -> list[Tile]:
    """Return all tiles that fit, cheapest by `cost` first, in one block or in blocks that fit the first-level cache."""
    found = set()
    for tile in fitting(problem.rows, problem.cols, problem.lanes, stride_cols=problem.stride[1]):
        for size in (FIRST_LEVEL // 2, FIRST_LEVEL, 3 * FIRST_LEVEL // 2):
            blocks = min(problem.inputs, -(-problem.footprint(tile) // size))
            found |= {tile, replace(tile, blocks=blocks)}
    return sorted(found, key=lambda tile: (cost(problem, tile), tile))


def problem_of(step: ConvStep, lanes: int, threads: int = 1) -> TileProblem:
    """Return the tile problem of a convolution step."""
    node = step.node
    rows, cols = region_of(step)
    return TileProblem(
        step.band or rows,
        cols,
        node.x.channels,
        node.kernel,
        step.stride,
        lanes,
        node.nonzeros / node.out.channels,
        threads,
        node.out.channels,
        step.residual is not None,
    )


def region_of(step: ConvStep) -> tuple[int, int]:
    """Return rows and columns of the output's region; one long row if row boundaries do not matter."""
    planes = step.writes[0].planes
    assert planes is not None
    grid = planes.grid
    pointwise = not step.band and step.node.window.single_pixel and step.stride == (1, 1)
    plain = all(b.planes is not None and not b.planes.halo for b in (*step.reads, *step.writes))
    return (1, grid.rows * grid.cols) if pointwise and plain else (grid.rows, grid.cols)
