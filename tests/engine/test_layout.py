"""Memory layout of images, and copies to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.engine.frontend.graph import Graph, Value
from regrow.engine.ops.base import Unary
from regrow.engine.ops.reshape import Input
from regrow.engine.plan.layout import Halo, IntArray, PlaneLayout, choose_grid, runs_of
from regrow.engine.plan.schedule import schedule


def input_table(height: int, width: int, halo: Halo, lanes: int) -> tuple[PlaneLayout, IntArray]:
    """The positions in a row-major image that planes are filled from."""
    planes = PlaneLayout(height, width, choose_grid(height, width, lanes), halo)
    y, x = planes.coordinates(halo=True)
    return planes, np.where(planes.contains(y, x), y * width + x, -1).reshape(-1)


def test_a_row_of_every_region_is_a_run() -> None:
    planes, table = input_table(32, 32, Halo(1, 1, 1, 1), 8)
    rows = [row * planes.row_pitch + 1 for row in range(1, 17)]
    assert set(rows) <= set(runs_of(table, 8).tolist())


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 90),
    size=st.integers(0, 2),
    lanes=st.sampled_from([4, 8, 16]),
)
def test_runs_are_found_wherever_all_lanes_read_successive_floats(
    height: int, width: int, size: int, lanes: int
) -> None:
    _, table = input_table(height, width, Halo(size, size, size, size), lanes)
    vectors = table.reshape(-1, lanes)
    expected, first = [], 0
    while first + lanes <= len(vectors):
        run = vectors[first : first + lanes]
        if run[0].min() >= 0 and (run == run[0] + np.arange(lanes)[:, None]).all():
            expected.append(first)
            first += lanes
        else:
            first += 1
    assert runs_of(table, lanes).tolist() == expected


def test_a_node_without_a_schedule_is_named() -> None:
    x, y = Value("x", (3, 8, 8)), Value("y", (3, 8, 8))
    with pytest.raises(NotImplementedError, match="Unary does not implement schedule"):
        schedule(Graph((Input("input", x), Unary("unknown", y, x)), y), lanes=4)
