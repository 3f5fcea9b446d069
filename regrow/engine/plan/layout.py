"""Memory layout of images: equal regions, one per vector lane, with a halo around each.

An image is cut into as many equal regions as a vector has lanes, and lane `l` of every vector holds region `l`. Moving
a kernel window by one pixel then moves by one whole vector, so every tap of a convolution is an aligned load, for any
image size, stride or kernel. A channel is a plane of `[rows][cols]` vectors: the region, and around it a halo with the
pixels of the neighboring regions, or the zero padding. docs/engine.md has a drawing.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regrow.engine.codegen.structs import Shift, side_struct

IntArray = NDArray[np.int64]
Cell = tuple[int, int]

_SHIFTS = {(-1, 0): Shift.ABOVE, (1, 0): Shift.BELOW, (0, -1): Shift.LEFT, (0, 1): Shift.RIGHT}


@dataclass(frozen=True)
class Grid:
    """How an image is cut: `down` x `across` regions of `rows` x `cols` pixels each.

    An image of 32 x 32 pixels in 8 lanes is Grid(2, 4, 16, 8).
    """

    down: int
    across: int
    rows: int
    cols: int

    @property
    def lanes(self) -> int:
        """Number of regions, which is the number of floats in a vector."""
        return self.down * self.across

    def scaled(self, stride: tuple[int, int]) -> Grid:
        """Return the grid of the input from which this one is computed with `stride`, lane by lane."""
        return replace(self, rows=self.rows * stride[0], cols=self.cols * stride[1])


@dataclass(frozen=True)
class Halo:
    """Rows and columns around each region, copied from its neighbors."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def __bool__(self) -> bool:
        return self != Halo()

    def __or__(self, other: Halo) -> Halo:
        return Halo(*map(max, astuple(self), astuple(other)))

    def covers(self, other: Halo) -> bool:
        """True if it is at least as wide on every side."""
        return self | other == self


@dataclass(frozen=True)
class Window:
    """A window that an operation moves over its input.

    `infinite`: the padding must be -inf, not zero, unless the input is never negative (a maximum).
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int] = (1, 1)
    infinite: bool = False

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns from the first pixel of the window to the last."""
        return (self.dilation[0] * (self.kernel[0] - 1), self.dilation[1] * (self.kernel[1] - 1))

    @property
    def halo(self) -> Halo:
        """How far it reaches over the edges of the region that it starts in."""
        after = [max(0, r - p - s + 1) for r, p, s in zip(self.reach, self.padding, self.stride, strict=True)]
        return Halo(self.padding[0], after[0], self.padding[1], after[1])

    @property
    def single_pixel(self) -> bool:
        """Whether it is 1 x 1 without padding."""
        return self.kernel == (1, 1) and self.padding == (0, 0)

    def padding_for(self, size: tuple[int, int], out: tuple[int, int]) -> tuple[int, int, int, int]:
        """Padding for `F.pad` with which an image of `size` gives an output of `out` pixels."""
        after = [
            (o - 1) * s + r + 1 - n - p
            for o, s, r, n, p in zip(out, self.stride, self.reach, size, self.padding, strict=True)
        ]
        return (self.padding[1], after[1], self.padding[0], after[0])


@dataclass(frozen=True)
class PlaneLayout:
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

        With a power of two, the same pixel of all channels would map to the same few cache sets.
        """
        per_line = max(1, 16 // self.lanes)
        lines = -(-self.rows * self.row_pitch // per_line)
        return (lines | 1) * per_line

    @property
    def first(self) -> int:
        """Index of the first vector of the region, after the halo."""
        return self.halo.top * self.row_pitch + self.halo.left

    @property
    def ragged(self) -> bool:
        """Whether the regions together are larger than the image, so that some lanes hold no pixels."""
        grid = self.grid
        return grid.down * grid.rows != self.height or grid.across * grid.cols != self.width

    def coordinates(self, *, halo: bool) -> tuple[IntArray, IntArray]:
        """Return the image row and column that each cell holds, as arrays `[rows, cols, lanes]`; may be outside it."""
        grid, around = self.grid, self.halo if halo else Halo()
        lane = np.arange(grid.lanes)
        rows = np.arange(-around.top, grid.rows + around.bottom)
        cols = np.arange(-around.left, grid.cols + around.right)
        y = rows[:, None] + (lane // grid.across * grid.rows)[None, :]
        x = cols[:, None] + (lane % grid.across * grid.cols)[None, :]
        shape = (len(rows), len(cols), grid.lanes)
        return np.broadcast_to(y[:, None], shape), np.broadcast_to(x[None], shape)

    def contains(self, y: IntArray, x: IntArray) -> NDArray[np.bool_]:
        """Return which pixels are inside the image."""
        return (y >= 0) & (y < self.height) & (x >= 0) & (x < self.width)

    def index(self, y: IntArray, x: IntArray) -> IntArray:
        """Return the position of pixels in a channel, in floats; -1 for pixels outside the image."""
        grid = self.grid
        inside = self.contains(y, x)
        y, x = np.where(inside, y, 0), np.where(inside, x, 0)
        vector = (y % grid.rows + self.halo.top) * self.row_pitch + x % grid.cols + self.halo.left
        lane = y // grid.rows * grid.across + x // grid.cols
        return np.where(inside, vector * grid.lanes + lane, -1)

    def mask(self) -> NDArray[np.int32]:
        """Return all ones where a cell of the region is a pixel of the image, else zero."""
        return np.where(self.contains(*self.coordinates(halo=False)), np.int32(-1), np.int32(0))


def choose_grid(
    height: int, width: int, lanes: int, *, before: Grid | None = None, most_down: int | None = None
) -> Grid:
    """Choose the grid that wastes the fewest pixels; at nearly equal waste, one that keeps or halves `before`.

    A layer with stride 2 moves no data between lanes if its regions are half as large as those of its input. At most
    `most_down` regions are below each other.
    """

    def cost(grid: Grid) -> tuple[float, int]:
        follows = before is None or before in (grid, grid.scaled((2, 2)))
        return grid.rows * grid.cols * (1.0 if follows else 1.02), abs(grid.rows - grid.cols)

    downs = [1 << power for power in range((most_down or lanes).bit_length())]
    return min((Grid(n, lanes // n, -(-height // n), -(-width // (lanes // n))) for n in downs), key=cost)


def runs_of(table: IntArray, lanes: int) -> IntArray:
    """Find runs in a table of positions: where `lanes` successive vectors read successive floats in every lane.

    In a row-major image, that is where a row of every region is inside the image. Runs are copied as transposed blocks.
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


def halo_sides(planes: PlaneLayout) -> NDArray[np.void]:
    """Return `struct side` for each row of the halo, then for each of its columns.

    A column is as high as the region and its halo: in the corners it copies cells of the neighbor's halo, which is
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
    return np.concatenate(sides)


def _side(planes: PlaneLayout, neighbor: Cell, target: Cell, source: Cell, step: int, cells: int) -> NDArray[np.void]:
    """Return one row or column. `neighbor` is in regions, cells are (row, column), `step` is in vectors."""
    grid, lane = planes.grid, np.arange(planes.grid.lanes)
    i, j = lane // grid.across + neighbor[0], lane % grid.across + neighbor[1]
    inside = (i >= 0) & (i < grid.down) & (j >= 0) & (j < grid.across)
    to, start = (row * planes.row_pitch + col for row, col in (target, source))
    side = np.zeros(1, np.dtype(side_struct(grid.lanes)))
    side["to"], side["from"], side["step"] = (4 * grid.lanes * vectors for vectors in (to, start, step))
    side["cells"] = cells
    side["shift"] = _SHIFTS.get(neighbor, Shift.ANY_SHIFT) if (grid.down, grid.across) == (2, 4) else Shift.ANY_SHIFT
    side["lanes"] = np.where(inside, i * grid.across + j, 0)
    side["mask"] = -inside.astype(np.int64)
    return side
