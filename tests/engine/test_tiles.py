"""How threads divide the tiles of a layer."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from regrow.engine.plan.tiles import Problem, Sharing, Tile


def problem(rows: int, cols: int, threads: int) -> Problem:
    return Problem(rows, cols, 1, (3, 3), (1, 1), 8, 1.0, threads=threads)


@pytest.mark.parametrize(
    ("rows", "cols", "tile", "threads", "uneven"),
    [
        (8, 4, Tile(1, 2, 4), 1, 1.0),
        (8, 4, Tile(1, 2, 4), 2, 1.0),
        (7, 4, Tile(1, 1, 4), 2, 8 / 7),
        (7, 4, Tile(1, 2, 4), 2, 8 / 7),  # three tiles of two rows, and the row that is left for who has one of them
        (7, 1, Tile(1, 7, 1), 2, 2.0),
        (1, 7, Tile(4, 1, 2), 2, 8 / 7),
    ],
)
def test_the_slowest_thread(rows: int, cols: int, tile: Tile, threads: int, uneven: float) -> None:
    assert problem(rows, cols, threads).unevenness(tile) == pytest.approx(uneven)


@pytest.mark.parametrize(
    ("rows", "cols", "tile", "outputs", "sharing", "waiting"),
    [
        (8, 4, Tile(1, 2, 4), 64, Sharing.NO_CHANNELS, 1.0),  # two tiles for either thread
        (7, 4, Tile(1, 1, 4), 64, Sharing.OF_FEW_TILES, 15 / 14),  # three for either, and one for both
        (7, 4, Tile(1, 1, 4), 3, Sharing.NO_CHANNELS, 8 / 7),  # which has too few channels
        (7, 4, Tile(2, 1, 4), 64, Sharing.NO_CHANNELS, 8 / 7),  # or too few groups of channels
        (7, 4, Tile(1, 2, 4), 64, Sharing.NO_CHANNELS, 8 / 7),  # who has one tile gets the row that is left
        (7, 1, Tile(1, 7, 1), 64, Sharing.OF_ALL_TILES, 1.5),
    ],
)
def test_channels_of_tiles_that_are_too_few(
    rows: int, cols: int, tile: Tile, outputs: int, sharing: Sharing, waiting: float
) -> None:
    layer = replace(problem(rows, cols, threads=2), outputs=outputs)
    assert layer.sharing(tile) is sharing
    assert layer.waiting(tile) == pytest.approx(waiting)
    assert replace(layer, threads=1).sharing(tile) is Sharing.NO_CHANNELS


def test_fewer_tiles_than_threads_are_divided_by_channels_only() -> None:
    assert replace(problem(3, 4, threads=4), outputs=64).sharing(Tile(1, 1, 4)) is Sharing.OF_ALL_TILES


@given(
    st.integers(1, 20), st.integers(1, 20), st.integers(1, 8), st.sampled_from([1, 2, 4, 7]), st.sampled_from([1, 2, 4])
)
def test_nobody_does_all_unless_there_is_one_tile(rows: int, cols: int, threads: int, down: int, across: int) -> None:
    uneven = problem(rows, cols, threads).unevenness(Tile(1, min(down, rows), min(across, cols)))
    assert 1 <= uneven + 1e-9 <= threads + 1e-6
