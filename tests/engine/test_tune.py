"""How the fastest tile is found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regrow.engine.compiler import steps_of
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.torch_export import capture
from regrow.engine.plan import tune, weights
from regrow.engine.plan.lower import lower, new_memo
from regrow.engine.plan.tiles import Tile
from regrow.engine.plan.tune import FINALISTS, REMATCHES, TURNS, assign, ranked


@pytest.mark.parametrize("members", range(1, 8))
def test_every_layer_of_a_family_tries_every_finalist(members: int) -> None:
    finalists = [Tile(1, 1, across) for across in range(1, FINALISTS + 1)]
    family = list(range(members))
    tried = [assign([finalists], [family], turn, match) for match in range(REMATCHES) for turn in range(len(finalists))]
    assert all({tiles[number] for tiles in tried} == set(finalists) for number in family)


def test_every_convolution_gets_a_tile_of_its_own_family() -> None:
    few, many = [Tile(1, 1, 1)], [Tile(1, 2, 2), Tile(1, 4, 2)]
    assert assign([few, many], [[1], [0, 2]]) == (many[0], few[0], many[1])


@pytest.mark.parametrize(("one", "other"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_short_disturbance_does_not_decide_which_is_faster(
    one: float, other: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "EXTRA_SECONDS", -1.0)
    for busy in range(TURNS):
        factors = [3 if turn == busy else 1 for turn in range(TURNS)]
        mine, theirs = (iter([time * factor for factor in factors]) for time in (one, other))
        assert tune.faster(mine.__next__, theirs.__next__) is (one < other)


def test_a_machine_that_is_busy_for_long_gets_further_rounds() -> None:
    mine = iter([3.0] * (TURNS + 2) + [1.0])
    assert tune.faster(mine.__next__, lambda: 2.0)
    assert next(mine, None) is None  # all rounds were needed


def test_a_single_low_time_does_not_decide_which_is_faster() -> None:
    theirs = iter([1.9 if turn == 3 else 3.0 for turn in range(TURNS)])
    assert tune.faster(lambda: 2.0, theirs.__next__)


def test_a_single_low_time_does_not_make_a_tile_the_fastest() -> None:
    steady, lucky = Tile(1, 1, 1), Tile(1, 1, 2)
    assert ranked({lucky: [0.1, 3.0, 3.0], steady: [2.0, 2.0, 2.0]}) == [steady, lucky]


def test_weights_are_converted_once_for_all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 8 * 8, 5)).eval()
    steps = steps_of(fuse(capture(model, torch.randn(1, 3, 8, 8))), lanes=8)
    tiles = [Tile(1, 1, 1), Tile(1, 2, 1), Tile(2, 1, 1), Tile(1, 1, 2)]
    expected = [lower(steps, [tile]) for tile in tiles]
    shapes: list[tuple[int, ...]] = []
    stored = weights.stored_values
    monkeypatch.setattr(weights, "stored_values", lambda w, kind: (shapes.append(tuple(w.shape)), stored(w, kind))[1])
    memo = new_memo()
    written = [lower(steps, [tile], memo=memo) for tile in tiles]
    assert sorted(shapes) == [(5, 512), (8, 3, 3, 3), (8, 3, 3, 3)]  # single channels, and two together
    for plan, same in zip(written, expected, strict=True):
        assert bytes(plan.ops) == bytes(same.ops)
        assert plan.constants.tobytes() == same.constants.tobytes()
