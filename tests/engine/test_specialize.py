"""Specialized kernels compute what general kernels compute, bit for bit."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import regrow
from regrow.engine import compiler
from regrow.engine.codegen.build import Kernels, NoCompilerError, load_library, specialized_library
from regrow.engine.codegen.specialize import separate_halos, specialize
from regrow.engine.codegen.structs import ThreadMode
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.torch_export import capture
from regrow.engine.ops.base import kind_of
from regrow.engine.ops.conv import conv_steps
from regrow.engine.plan import split
from regrow.engine.plan.lower import Plan, lower
from regrow.engine.plan.schedule import schedule
from regrow.engine.plan.tiles import candidates, problem_of, region_of
from regrow.engine.runtime.session import NativeRunner
from regrow.models import build
from tests.engine.networks import networks, sparsify

CONV, HALO = kind_of("conv"), kind_of("halo")
LANES = [lanes for lanes in (4, 8, 16) if lanes <= load_library().lanes]


def plan_of(model: nn.Module, x: Tensor, lanes: int, threads: int = 1) -> Plan:
    return lower(split.in_bands(schedule(fuse(capture(model, x)), lanes)), threads=threads)


def halos(plan: Plan) -> int:
    return sum(op.kind == HALO for op in plan.ops)


def check(model: nn.Module, x: Tensor, lanes: int, threads: int = 1) -> int:
    """Compare the two, and return how many halos the convolutions write themselves."""
    return check_plan(model, x, plan_of(model, x, lanes, threads), threads)


def check_plan(model: nn.Module, x: Tensor, plan: Plan, threads: int = 1) -> int:
    library = load_library(lanes=plan.lanes)
    own_plan, kernels = specialize(plan)
    with torch.no_grad():
        y = torch.empty_like(model(x))
    own_y = torch.full_like(y, float("nan"))
    NativeRunner(library, plan, threads=threads, mode=ThreadMode.PER_LAYER).run(x, y)
    runner = NativeRunner(specialized_library(library, kernels), own_plan, threads=threads, mode=ThreadMode.PER_LAYER)
    runner.run(x, own_y)
    for session in runner._sessions._idle:  # cells that are never written would show as NaN
        ctypes.memset(session.arenas.ctypes.data, 0xFF, own_plan.arena_bytes)
    runner.run(x, own_y)
    assert torch.equal(y, own_y)
    return halos(plan) - halos(own_plan)


def sparse(name: str, size: int, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = build(name, size=size).eval()
    sparsify(model, 0.1, torch.Generator().manual_seed(seed))
    return model


@pytest.mark.parametrize(("name", "size"), [("resnet8", 32), ("resnet8", 28), ("densenet22", 32)])
def test_built_in_networks_are_computed_bit_for_bit(name: str, size: int) -> None:
    check(sparse(name, size), torch.randn(2, 3, size, size), load_library().lanes)


class Block(nn.Module):
    """A step with stride, and a sum whose normalized form is what the next convolution reads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.first, self.second, self.last = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = x + self.second(torch.relu(self.first(x)))
        return y + self.last(torch.relu(self.norm(y)))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("size", [(32, 32), (20, 28)])
def test_specialized_kernels_write_halos_themselves(size: tuple[int, int], lanes: int) -> None:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(2, 3, *size)
    model.norm.running_mean.normal_()
    sparsify(model, 0.3, torch.Generator().manual_seed(1))
    steps = schedule(fuse(capture(model, x)), lanes)
    offers = []
    for step in conv_steps(steps):
        rows, cols = region_of(step)
        tiles = candidates(problem_of(step, lanes, 1))
        offers.append([tile for tile in tiles if tile.cols == cols and rows % tile.rows == 0])
    for turn in range(2):
        plan = lower(steps, [offer[turn % len(offer)] for offer in offers])
        assert check_plan(model, x, plan) == 3


def test_tiles_that_divide_the_region_but_not_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "_band", lambda chain, _: 3 if len(chain) > 1 else 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.ReLU()).eval()
    x, lanes = torch.randn(1, 3, 32, 32), load_library().lanes
    steps = split.in_bands(schedule(fuse(capture(model, x)), lanes))
    offers = [candidates(problem_of(step, lanes, 1)) for step in conv_steps(steps)]
    plan = lower(steps, [next((tile for tile in offer if tile.rows > 1), offer[0]) for offer in offers])
    convolutions = [op.as_.conv for op in plan.ops if op.kind == CONV]
    assert any(conv.band % conv.tile_rows and conv.rows % conv.tile_rows == 0 for conv in convolutions)
    check_plan(model, x, plan)


def test_without_specialized_kernels_a_network_runs_on_general_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NoCompilerError("the disk is full")

    monkeypatch.setattr(compiler, "specialized_library", fail)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)
    with pytest.warns(RuntimeWarning, match="general ones run it, more slowly: the disk is full"):
        compiled = regrow.compile(model, x)
    torch.testing.assert_close(compiled(x), model(x))


def test_threads_that_split_layers_compute_bit_for_bit() -> None:
    check(sparse("resnet8", 32), torch.randn(1, 3, 32, 32), load_library().lanes, threads=3)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(drawn=networks())
def test_any_network_is_computed_bit_for_bit(drawn: tuple[nn.Module, Tensor]) -> None:
    check(*drawn, load_library().lanes)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", LANES)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(drawn=networks())
def test_many_networks_are_computed_bit_for_bit(lanes: int, drawn: tuple[nn.Module, Tensor]) -> None:
    check(*drawn, lanes)


def test_networks_that_differ_in_their_weights_use_the_same_kernels() -> None:
    x, lanes = torch.randn(1, 3, 32, 32), load_library().lanes
    plans = [plan_of(sparse("resnet8", 32, seed), x, lanes) for seed in (0, 1)]
    (_, first), (own, second) = (specialize(plan) for plan in plans)
    assert first == second
    convolutions = [op.as_.conv for op in own.ops if op.kind == CONV]
    assert all(conv.variant for conv in convolutions)
    assert max(conv.variant for conv in convolutions) < len(convolutions)
    assert not any(op.as_.conv.variant for op in plans[1].ops if op.kind == CONV)  # the given plan stays as it was


def test_separate_halos_are_those_of_the_specialized_plan() -> None:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(1, 3, 32, 32)
    steps = schedule(fuse(capture(model, x)), load_library().lanes)
    offers = [candidates(problem_of(step, steps.lanes, 1)) for step in conv_steps(steps)]
    for turn in range(4):
        plan = lower(steps, [offer[turn % len(offer)] for offer in offers])
        separate = [
            halo for number, op in enumerate(plan.ops) if op.kind == CONV for halo in separate_halos(plan, number)
        ]
        kept = [op for op in specialize(plan)[0].ops if op.kind == HALO]
        assert len(separate) == len(kept)


@pytest.mark.parametrize("processors", [3, None])
def test_kernels_are_the_same_however_many_compilers_build_them(
    processors: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = sparse("resnet8", 32), torch.randn(1, 3, 32, 32)
    library = load_library()
    plan = plan_of(model, x, library.lanes)
    own_plan, kernels = specialize(plan)
    expected, y = torch.empty(1, 10), torch.empty(1, 10)
    NativeRunner(library, plan).run(x, expected)
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path))  # so that they are built now
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    NativeRunner(specialized_library(library, kernels), own_plan).run(x, y)
    assert torch.equal(y, expected)


def test_every_kernel_is_built_in_one_unit_and_declared_in_all() -> None:
    kernels = Kernels(((1, 1, 1, 1), (1, 1, 2, 1), (2, 1, 1, 1)), ("{a}", "{b}"), ("h",))
    first, second = (kernels.definitions(unit, 2).splitlines() for unit in range(2))
    assert first[:2] == ["#define TILES(T) T(1, 1, 1, 1) T(2, 1, 1, 1)", "#define VARIANTS(V) V(2, {b})"]
    assert first[3:] == ["#define TILES_ELSEWHERE(T) T(1, 1, 2, 1)", "#define VARIANTS_ELSEWHERE(V) V(1)"]
    assert second[:2] == ["#define TILES(T) T(1, 1, 2, 1)", "#define VARIANTS(V) V(1, {a})"]
    assert second[3:] == [
        "#define TILES_ELSEWHERE(T) T(1, 1, 1, 1) T(2, 1, 1, 1)",
        "#define VARIANTS_ELSEWHERE(V) V(2)",
    ]
