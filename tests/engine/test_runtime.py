"""How compiled models behave in a process: threads, calls at the same time, memory, and the cache on disk."""

from __future__ import annotations

import gc
import platform
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import regrow
from regrow.engine.codegen.build import Kernels, load_library
from regrow.engine.codegen.structs import ChannelSplit, ThreadMode
from regrow.engine.compiler import native_runner
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.torch_export import capture
from regrow.engine.ops.base import kind_of
from regrow.engine.ops.conv import conv_steps
from regrow.engine.plan.lower import lower
from regrow.engine.plan.schedule import schedule
from regrow.engine.plan.tiles import candidates, problem_of
from regrow.engine.runtime.session import NativeRunner
from regrow.models import build
from tests.engine.networks import sparsify


def sparse(name: str = "resnet8", density: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    model = build(name).eval()
    sparsify(model, density, torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize("name", ["resnet8", "densenet22", "small"])
@pytest.mark.parametrize("threads", [2, 3])
def test_several_threads_compute_the_same_as_one(name: str, threads: int) -> None:
    model = sparse(name)
    x = torch.randn(7, 3, 32, 32)
    one = regrow.compile(model, x, tune=False)
    several = regrow.compile(model, x, tune=False, threads=threads)
    for images in (1, 2, 3, 7):
        torch.testing.assert_close(several(x[:images]), one(x[:images]), rtol=1e-5, atol=1e-5)


class Ragged(nn.Module):
    """Regions of odd sizes, so that tiles leave rows and columns over, and enough channels for several blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.wide, self.last = nn.Conv2d(32, 48, 3, padding=1), nn.Conv2d(48, 32, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        return (x + self.last(torch.relu(self.wide(x)))).flatten(1)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_that_split_layers_compute_the_same_as_one(threads: int) -> None:
    torch.manual_seed(0)
    model = Ragged().eval()
    sparsify(model, 0.3, torch.Generator().manual_seed(1))
    x = torch.randn(1, 3, 14, 14)
    with torch.no_grad():
        expected = model(x)
    library, graph = load_library(), fuse(capture(model, x))
    steps = schedule(graph, library.lanes)
    offers = [candidates(problem_of(step, library.lanes, threads)) for step in conv_steps(steps)]
    split = False
    for turn in range(12):
        # Tiles in several blocks, whose partial sums each thread has to keep for itself, come first.
        tiles = [sorted(offer, key=lambda tile: -tile.blocks)[turn % len(offer)] for offer in offers]
        plan = lower(steps, tiles, threads=threads)
        split |= any(
            op.kind == kind_of("conv") and op.as_.conv.channel_split and op.as_.conv.blocks > 1 for op in plan.ops
        )
        runner = NativeRunner(library, plan, threads=threads, mode=ThreadMode.PER_LAYER)
        for _ in range(20):
            y = torch.empty(1, expected.shape[1])
            runner.run(x, y)
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert split


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_split_the_channels_of_tiles_that_are_too_few(threads: int) -> None:
    torch.manual_seed(0)
    model, x = Ragged().eval(), torch.randn(1, 3, 52, 52)
    with torch.no_grad():
        expected = model(x)
    library, graph = load_library(), fuse(capture(model, x))
    steps = schedule(graph, library.lanes)
    tiles = []
    for problem in (problem_of(step, library.lanes, threads) for step in conv_steps(steps)):
        offers = candidates(problem)
        tiles.append(
            next((tile for tile in offers if problem.channel_split(tile) is ChannelSplit.FEW_TILES), offers[0])
        )
    plan = lower(steps, tiles, threads=threads)
    assert any(op.kind == kind_of("conv") and op.as_.conv.channel_split == ChannelSplit.FEW_TILES for op in plan.ops)
    runner = NativeRunner(library, plan, threads=threads, mode=ThreadMode.PER_LAYER)
    y = torch.empty(1, expected.shape[1])
    runner.run(x, y)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_results_are_single_precision_whatever_the_default() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)
    compiled = regrow.compile(model, x, tune=False)
    torch.set_default_dtype(torch.float64)
    try:
        y = compiled(x)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(y, model(x).detach())


def test_zero_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        regrow.compile(nn.Linear(3, 4), torch.randn(1, 3), threads=0)


def test_calls_at_the_same_time_do_not_disturb_each_other() -> None:
    models = [sparse("resnet8"), sparse("small"), sparse("resnet8", density=0.5)]
    x = torch.randn(16, 1, 3, 32, 32)
    compiled = [regrow.compile(model, x[0], tune=False, threads=1 + number % 2) for number, model in enumerate(models)]
    expected = [[model(one) for one in x] for model in compiled]
    jobs = [(m, i) for _ in range(4) for m in range(len(models)) for i in range(len(x))]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda job: compiled[job[0]](x[job[1]]), jobs))
    assert all(torch.equal(y, expected[m][i]) for (m, i), y in zip(jobs, results, strict=True))


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see the memory in use")
def test_ten_thousand_calls_leak_nothing() -> None:
    compiled = regrow.compile(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.randn(1, 3, 8, 8), tune=False)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(1000):
        compiled(x)
    before = resident()
    for _ in range(10_000):
        compiled(x)
    assert resident() - before < 1 << 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see the memory in use")
def test_models_that_are_dropped_give_back_memory_and_threads() -> None:
    x, y = torch.randn(1, 3, 64, 64), torch.empty(1, 64, 62, 62)
    graph = fuse(capture(nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU()).eval(), x))
    for round_ in range(30):
        native_runner(graph, load_library(), threads=2).run(x, y)
        gc.collect()
        if round_ == 9:
            before = resident(), len(list(Path("/proc/self/task").iterdir()))
    assert resident() - before[0] < 8 << 20
    assert len(list(Path("/proc/self/task").iterdir())) <= before[1]


def test_kernels_are_built_once_and_tuning_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path))
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)
    first = regrow.compile(model, x)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "kernels").iterdir()}
    assert sorted(path.suffix for path in files) == [".json", ".so", ".so"]  # for any network, and for this one
    second = regrow.compile(model, x)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kernels").iterdir()} == files
    assert torch.equal(first(x), second(x))
    tuned = next(path for path in files if path.suffix == ".json")
    for tiles in ("", "[[1]]", "[]", '{"a": 1}', "[[9, 9, 9, 9]]", "[[1, 1, 1, 0]]"):
        tuned.write_text(f'{{"mode": 1, "tiles": {tiles}}}')
        torch.testing.assert_close(regrow.compile(model, x)(x), first(x))
    for damaged in ("", "[]", '{"tiles": []}'):
        tuned.write_text(damaged)
        torch.testing.assert_close(regrow.compile(model, x)(x), first(x))


BUILDER = """
from regrow.engine.codegen import build
build.SHAPES = build.SHAPES[:1]
print("ready", flush=True)
input()
print(build.load_library().key)
"""


@pytest.mark.slow
def test_processes_that_build_at_the_same_time_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path))
    started = [
        subprocess.Popen([sys.executable, "-c", BUILDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    keys = {process.communicate()[0].strip() for process in started}
    assert [process.returncode for process in started] == [0] * 4
    assert len(keys) == 1
    (built,) = (tmp_path / "kernels").iterdir()
    assert built.name.startswith(f"kernels-{keys.pop()}-")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX-512 is for x86")
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_kernels_for_avx512_compile_without_a_warning_anywhere(compiler: str, tmp_path: Path) -> None:
    """Machines that cannot run them at least read every line of them."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / "kernels.c"
    source.write_text(Kernels(((1, 1, 8, 1), (2, 1, 4, 2), (1, 4, 4, 1))).sources(1)[0])
    flags = ["-O1", "-march=skylake-avx512", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *flags, "-c", str(source), "-o", str(tmp_path / "kernels.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
