"""Where pixels live, and how they get there."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regrow.deploy.engine.layout import Halo, IntArray, Planes, choose_grid, runs_of

LANES = 8


def input_table(height: int, width: int, halo: Halo) -> tuple[Planes, IntArray]:
    """The positions in a row-major image that planes are filled from."""
    planes = Planes(height, width, choose_grid(height, width, LANES), halo)
    y, x = planes.coordinates(halo=True)
    return planes, np.where(planes.contains(y, x), y * width + x, -1).reshape(-1)


def test_a_row_of_every_region_is_a_run() -> None:
    planes, table = input_table(32, 32, Halo(1, 1, 1, 1))
    rows = [row * planes.row_pitch + 1 for row in range(1, 17)]
    assert set(rows) <= set(runs_of(table, LANES).tolist())


@given(height=st.integers(1, 40), width=st.integers(1, 90), size=st.integers(0, 2))
def test_the_lanes_of_a_run_follow_each_other_inside_the_image(height: int, width: int, size: int) -> None:
    _, table = input_table(height, width, Halo(size, size, size, size))
    vectors = table.reshape(-1, LANES)
    runs = runs_of(table, LANES)
    assert (np.diff(runs) >= LANES).all()
    for first in runs:
        run = vectors[first : first + LANES]
        assert (run == run[0] + np.arange(LANES)[:, None]).all()
        assert run.min() >= 0
