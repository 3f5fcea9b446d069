"""How the fastest tile is found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from regrow.deploy.engine.model import NativeRunner
from regrow.deploy.engine.tiles import Tile
from regrow.deploy.engine.tune import FINALISTS, REMATCHES, TURNS, _Sharing, dealt, ranked


@pytest.mark.parametrize("members", range(1, 8))
def test_every_layer_of_a_family_tries_every_finalist(members: int) -> None:
    finalists = [Tile(1, 1, across) for across in range(1, FINALISTS + 1)]
    family = list(range(members))
    tried = [dealt([finalists], [family], turn, match) for match in range(REMATCHES) for turn in range(len(finalists))]
    assert all({tiles[number] for tiles in tried} == set(finalists) for number in family)


def test_every_convolution_gets_a_tile_of_its_own_family() -> None:
    few, many = [Tile(1, 1, 1)], [Tile(1, 2, 2), Tile(1, 4, 2)]
    assert dealt([few, many], [[1], [0, 2]]) == (many[0], few[0], many[1])


class _Busy(_Sharing):
    """Takes the given times, one after the other."""

    def __init__(self, times: list[float]) -> None:
        self.times = iter(times)
        self.usual = self.together = self.alone = cast(NativeRunner, SimpleNamespace(divide=False))

    def least(self, runner: NativeRunner) -> float:
        return next(self.times)


@pytest.mark.parametrize(("together", "alone", "pays"), [(1.0, 2.0, True), (2.0, 1.0, False)])
def test_a_busy_moment_does_not_decide_whether_threads_share_an_image(
    together: float, alone: float, pays: bool
) -> None:
    for busy in range(TURNS):
        times = [time * (3 if turn == busy else 1) for turn in range(TURNS) for time in (together, alone)]
        assert _Busy(times).pays() is pays


def test_one_lucky_moment_does_not_make_a_tile_the_fastest() -> None:
    steady, lucky = Tile(1, 1, 1), Tile(1, 1, 2)
    assert ranked({lucky: [0.1, 3.0, 3.0], steady: [2.0, 2.0, 2.0]}) == [steady, lucky]
