"""Where each pixel lives: images are cut into as many equal regions as a vector has lanes.

Lane `l` of every vector holds region `l`, so that shifting a kernel window moves whole vectors: every tap of a
convolution is an aligned load, for any image size, stride or kernel. A channel is a plane of `[rows][cols]` vectors:
the region, and around it a halo with what the neighbouring regions (or the zero padding) hold there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Cell = tuple[int, int]

_SHIFTS: dict[Cell, int] = {(-1, 0): 1, (1, 0): 2, (0, -1): 3, (0, 1): 4}
"""`enum shift` of kernels.c, by the neighbour's place."""
SIDE_NUMBERS = 16  # at the start of `struct side`


@dataclass(frozen=True)
class Grid:
    """How an image is cut: `down` x `across` regions of `rows` x `cols` pixels each."""

    down: int
    across: int
    rows: int
    cols: int

    @property
    def lanes(self) -> int:
        """How many regions there are."""
        return self.down * self.across

    def scaled(self, stride: tuple[int, int]) -> Grid:
        """The grid of the input from which this one is computed with `stride`."""
        return replace(self, rows=self.rows * stride[0], cols=self.cols * stride[1])


@dataclass(frozen=True)
class Halo:
    """Rows and columns around each region."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def __bool__(self) -> bool:
        return self != Halo()

    def __or__(self, other: Halo) -> Halo:
        return Halo(
            max(self.top, other.top),
            max(self.bottom, other.bottom),
            max(self.left, other.left),
            max(self.right, other.right),
        )

    def covers(self, other: Halo) -> bool:
        """True if it is at least as wide on every side."""
        return self | other == self


@dataclass(frozen=True)
class Planes:
    """The layout of an image of `height` x `width` pixels, for one channel."""

    height: int
    width: int
    grid: Grid
    halo: Halo = Halo()

    @property
    def lanes(self) -> int:
        """Floats in a vector."""
        return self.grid.lanes

    @property
    def row_pitch(self) -> int:
        """Vectors from one row to the next."""
        return self.halo.left + self.grid.cols + self.halo.right

    @property
    def rows(self) -> int:
        """Rows of vectors, halo included."""
        return self.halo.top + self.grid.rows + self.halo.bottom

    @cached_property
    def pitch(self) -> int:
        """Vectors from one channel to the next: an odd number of cache lines.

        With a power of two the same pixel of all channels would compete for the same few lines of the cache.
        """
        per_line = max(1, 16 // self.lanes)
        lines = -(-self.rows * self.row_pitch // per_line)
        return (lines | 1) * per_line

    @property
    def first(self) -> int:
        """The vector where the region starts, behind the halo."""
        return self.halo.top * self.row_pitch + self.halo.left

    @property
    def ragged(self) -> bool:
        """True if the regions together are larger than the image."""
        grid = self.grid
        return grid.down * grid.rows != self.height or grid.across * grid.cols != self.width

    def coordinates(self, *, halo: bool) -> tuple[IntArray, IntArray]:
        """The image's row and column that each cell holds, as arrays `[rows, cols, lanes]`; may lie outside it."""
        grid, around = self.grid, self.halo if halo else Halo()
        lane = np.arange(grid.lanes)
        rows = np.arange(-around.top, grid.rows + around.bottom)
        cols = np.arange(-around.left, grid.cols + around.right)
        y = rows[:, None] + (lane // grid.across * grid.rows)[None, :]
        x = cols[:, None] + (lane % grid.across * grid.cols)[None, :]
        shape = (len(rows), len(cols), grid.lanes)
        return np.broadcast_to(y[:, None], shape), np.broadcast_to(x[None], shape)

    def contains(self, y: IntArray, x: IntArray) -> NDArray[np.bool_]:
        """Which of these pixels lie inside the image."""
        return (y >= 0) & (y < self.height) & (x >= 0) & (x < self.width)

    def index(self, y: IntArray, x: IntArray) -> IntArray:
        """Where pixels lie in a channel, counted in floats; -1 for those outside the image."""
        grid = self.grid
        inside = self.contains(y, x)
        y, x = np.where(inside, y, 0), np.where(inside, x, 0)
        vector = (y % grid.rows + self.halo.top) * self.row_pitch + x % grid.cols + self.halo.left
        lane = y // grid.rows * grid.across + x // grid.cols
        return np.where(inside, vector * grid.lanes + lane, -1)

    def mask(self) -> NDArray[np.int32]:
        """All ones where a region's cell is a pixel, zero where it is not."""
        return np.where(self.contains(*self.coordinates(halo=False)), np.int32(-1), np.int32(0))


def choose_grid(
    height: int, width: int, lanes: int, *, before: Grid | None = None, most_down: int | None = None
) -> Grid:
    """The cut that wastes the fewest pixels; at nearly equal waste the one that halves (or keeps) `before`.

    A layer of stride two needs no data to move between lanes if its regions are half as large as those before.
    At most `most_down` regions lie below each other.
    """
    best: tuple[float, int, Grid] | None = None
    down = 1
    while down <= (most_down or lanes):
        across = lanes // down
        grid = Grid(down, across, -(-height // down), -(-width // across))
        follows = before is None or before in (grid, grid.scaled((2, 2)))
        cost = grid.rows * grid.cols * (1.0 if follows else 1.02)
        if best is None or (cost, abs(grid.rows - grid.cols)) < best[:2]:
            best = (cost, abs(grid.rows - grid.cols), grid)
        down *= 2
    assert best is not None
    return best[2]


def runs_of(table: IntArray, lanes: int) -> IntArray:
    """Where, in a table of positions, `lanes` vectors start that read floats that follow each other, in every lane.

    In a row-major image that is where a row of every region lies inside it.
    """
    vectors = table[: len(table) // lanes * lanes].reshape(-1, lanes)
    inside = np.all(vectors >= 0, axis=1)
    follows = np.zeros(len(vectors), bool)
    follows[1:] = inside[1:] & inside[:-1] & np.all(np.diff(vectors, axis=0) == 1, axis=1)
    starts = np.flatnonzero(~follows)
    counts = np.where(inside[starts], np.diff(np.append(starts, len(vectors))) // lanes, 0)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    runs: IntArray = np.repeat(starts, counts) + lanes * number
    return runs


def halo_sides(planes: Planes) -> NDArray[np.int32]:
    """How to fill the halo from the regions: `struct side` of kernels.c for each of its rows, then for its columns.

    Each has where its cells lie, where the neighbour's do (from the first pixel on), how far one is from the next (in
    bytes), how many there are, the shift, then the lane that every lane is filled from, and a mask (zero outside the
    image). A column has the height of the halo, too: in the corners it takes what is in the neighbour's halo, which is
    filled by then.
    """
    grid, halo = planes.grid, planes.halo
    sides = []
    for row in (*range(-halo.top, 0), *range(grid.rows, grid.rows + halo.bottom)):
        down, in_row = divmod(row, grid.rows)
        sides.append(_side(planes, (down, 0), (row, 0), (in_row, 0), 1, grid.cols))
    for col in (*range(-halo.left, 0), *range(grid.cols, grid.cols + halo.right)):
        across, in_col = divmod(col, grid.cols)
        top = -halo.top
        sides.append(_side(planes, (0, across), (top, col), (top, in_col), planes.row_pitch, planes.rows))
    return np.stack(sides)


def side_bytes(lanes: int) -> int:
    """The size of `struct side`."""
    return 4 * (SIDE_NUMBERS + 2 * lanes)


def _side(planes: Planes, neighbour: Cell, target: Cell, source: Cell, step: int, cells: int) -> NDArray[np.int32]:
    """One row or column: the neighbour so many regions down and across, cells as row and column, steps in vectors."""
    grid, lane = planes.grid, np.arange(planes.grid.lanes)
    i, j = lane // grid.across + neighbour[0], lane % grid.across + neighbour[1]
    inside = (i >= 0) & (i < grid.down) & (j >= 0) & (j < grid.across)
    to, start = (row * planes.row_pitch + col for row, col in (target, source))
    numbers = np.zeros(SIDE_NUMBERS, np.int64)
    numbers[:4] = [4 * grid.lanes * vectors for vectors in (to, start, step)] + [cells]
    numbers[4] = _SHIFTS.get(neighbour, 0) if (grid.down, grid.across) == (2, 4) else 0
    lanes = np.where(inside, i * grid.across + j, 0)
    return np.concatenate([numbers, lanes, -inside.astype(np.int64)]).astype(np.int32)
