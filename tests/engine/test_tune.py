"""How the fastest tile is found."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn

from regrow.engine.compiler import steps_of
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.torch_export import capture
from regrow.engine.plan import tune, weights
from regrow.engine.plan.lower import write_plan
from regrow.engine.plan.tiles import Tile
from regrow.engine.plan.tune import FINALISTS, REMATCHES, TURNS, dealt, ranked
from regrow.engine.plan.writer import Once
from regrow.engine.runtime.runners import NativeRunner


@pytest.mark.parametrize("members", range(1, 8))
def test_every_layer_of_a_family_tries_every_finalist(members: int) -> None:
    finalists = [Tile(1, 1, across) for across in range(1, FINALISTS + 1)]
    family = list(range(members))
    tried = [dealt([finalists], [family], turn, match) for match in range(REMATCHES) for turn in range(len(finalists))]
    assert all({tiles[number] for tiles in tried} == set(finalists) for number in family)


def test_every_convolution_gets_a_tile_of_its_own_family() -> None:
    few, many = [Tile(1, 1, 1)], [Tile(1, 2, 2), Tile(1, 4, 2)]
    assert dealt([few, many], [[1], [0, 2]]) == (many[0], few[0], many[1])


@pytest.mark.parametrize(("one", "other"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_busy_moment_does_not_decide_what_is_sooner(
    one: float, other: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, x = cast(NativeRunner, None), torch.empty(0)
    monkeypatch.setattr(tune, "SHARING_SECONDS", -1.0)
    for busy in range(TURNS):
        times = iter([time * (3 if turn == busy else 1) for turn in range(TURNS) for time in (one, other)])
        monkeypatch.setattr(tune, "_least", lambda *_, times=times: next(times))
        assert tune.sooner(runner, runner, x, x) is (one < other)


def test_a_machine_that_is_busy_for_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, x = cast(NativeRunner, None), torch.empty(0)
    times = iter([time for turn in range(TURNS + 3) for time in (3.0 if turn < TURNS + 2 else 1.0, 2.0)])
    monkeypatch.setattr(tune, "_least", lambda *_: next(times))
    assert tune.sooner(runner, runner, x, x)


def test_one_lucky_moment_does_not_decide_what_is_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, x = cast(NativeRunner, None), torch.empty(0)
    times = iter([time for turn in range(TURNS) for time in (2.0, 1.9 if turn == 3 else 3.0)])
    monkeypatch.setattr(tune, "_least", lambda *_: next(times))
    assert tune.sooner(runner, runner, x, x)


def test_one_lucky_moment_does_not_make_a_tile_the_fastest() -> None:
    steady, lucky = Tile(1, 1, 1), Tile(1, 1, 2)
    assert ranked({lucky: [0.1, 3.0, 3.0], steady: [2.0, 2.0, 2.0]}) == [steady, lucky]


def test_weights_are_converted_once_for_all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 8 * 8, 5)).eval()
    steps = steps_of(fuse(capture(model, torch.randn(1, 3, 8, 8))), lanes=8)
    tiles = [Tile(1, 1, 1), Tile(1, 2, 1), Tile(2, 1, 1), Tile(1, 1, 2)]
    expected = [write_plan(steps, [tile]) for tile in tiles]
    shapes: list[tuple[int, ...]] = []
    stored = weights.stored_values
    monkeypatch.setattr(weights, "stored_values", lambda w, kind: (shapes.append(tuple(w.shape)), stored(w, kind))[1])
    once = Once()
    written = [write_plan(steps, [tile], once=once) for tile in tiles]
    assert sorted(shapes) == [(5, 512), (8, 3, 3, 3), (8, 3, 3, 3)]  # single channels, and two together
    for plan, same in zip(written, expected, strict=True):
        assert bytes(plan.ops) == bytes(same.ops)
        assert plan.constants.tobytes() == same.constants.tobytes()
