"""How threads split the tiles of a layer."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from regrow.engine.codegen.structs import ChannelSplit
from regrow.engine.plan.tiles import Tile, TileProblem


def problem(rows: int, cols: int, threads: int) -> TileProblem:
    return TileProblem(rows, cols, 1, (3, 3), (1, 1), 8, 1.0, threads=threads)


@pytest.mark.parametrize(
    ("rows", "cols", "tile", "threads", "uneven"),
    [
        (8, 4, Tile(1, 2, 4), 1, 1.0),
        (8, 4, Tile(1, 2, 4), 2, 1.0),
        (7, 4, Tile(1, 1, 4), 2, 8 / 7),
        (7, 4, Tile(1, 2, 4), 2, 8 / 7),  # three tiles, and the remaining row for the thread with one of them
        (7, 1, Tile(1, 7, 1), 2, 2.0),
        (1, 7, Tile(4, 1, 2), 2, 8 / 7),
    ],
)
def test_imbalance_is_that_of_the_slowest_thread(rows: int, cols: int, tile: Tile, threads: int, uneven: float) -> None:
    assert problem(rows, cols, threads).imbalance(tile) == pytest.approx(uneven)


@pytest.mark.parametrize(
    ("rows", "cols", "tile", "outputs", "sharing", "waiting"),
    [
        (8, 4, Tile(1, 2, 4), 64, ChannelSplit.NO_TILES, 1.0),  # two tiles for either thread
        (7, 4, Tile(1, 1, 4), 64, ChannelSplit.FEW_TILES, 15 / 14),  # three for either, and one for both
        (7, 4, Tile(1, 1, 4), 3, ChannelSplit.NO_TILES, 8 / 7),  # which has too few channels
        (7, 4, Tile(2, 1, 4), 64, ChannelSplit.NO_TILES, 8 / 7),  # or too few groups of channels
        (7, 4, Tile(1, 2, 4), 64, ChannelSplit.NO_TILES, 8 / 7),  # the thread with one tile gets the remaining row
        (7, 1, Tile(1, 7, 1), 64, ChannelSplit.ALL_TILES, 1.5),
    ],
)
def test_channels_are_split_in_tiles_that_are_too_few(
    rows: int, cols: int, tile: Tile, outputs: int, sharing: ChannelSplit, waiting: float
) -> None:
    layer = replace(problem(rows, cols, threads=2), outputs=outputs)
    assert layer.channel_split(tile) is sharing
    assert layer.slowdown(tile) == pytest.approx(waiting)
    assert replace(layer, threads=1).channel_split(tile) is ChannelSplit.NO_TILES


def test_fewer_tiles_than_threads_have_all_channels_split() -> None:
    assert replace(problem(3, 4, threads=4), outputs=64).channel_split(Tile(1, 1, 4)) is ChannelSplit.ALL_TILES


@given(
    st.integers(1, 20), st.integers(1, 20), st.integers(1, 8), st.sampled_from([1, 2, 4, 7]), st.sampled_from([1, 2, 4])
)
def test_one_thread_does_everything_if_and_only_if_there_is_one_piece(
    rows: int, cols: int, threads: int, down: int, across: int
) -> None:
    tile = Tile(1, min(down, rows), min(across, cols))
    (whole_rows, left_rows), (whole_cols, left_cols) = divmod(rows, tile.rows), divmod(cols, tile.cols)
    tiles = whole_rows * whole_cols
    uneven = problem(rows, cols, threads).imbalance(tile)
    assert 1 - 1e-9 <= uneven <= threads + 1e-9
    everything = uneven > threads - 1e-9
    assert everything == (threads == 1 or (tiles == 1 and not left_rows and not left_cols))
