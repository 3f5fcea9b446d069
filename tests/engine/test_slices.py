"""Threads that each compute a slice of an image's rows give what one thread gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor, nn

import regrow
from regrow.engine.codegen.build import load_library, specialized_library
from regrow.engine.codegen.specialize import specialize
from regrow.engine.compiler import native_runner
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.torch_export import capture
from regrow.engine.ops.conv import conv_steps
from regrow.engine.plan.lower import Plan, lower
from regrow.engine.plan.split import slice_schedule
from regrow.engine.plan.steps import Schedule
from regrow.engine.plan.tiles import candidates, problem_of, region_of
from regrow.engine.runtime.session import NativeRunner, RowsRunner
from regrow.models import build
from tests.engine.networks import ACTIVATIONS, Head, Residual, sparsify

WINDOWS = (1, 1), (1, 3), (3, 1), (3, 3), (5, 5)


class TwoReaders(nn.Module):
    """One layer reads the output of a convolution, and another what batch norm and ReLU make of it."""

    def __init__(self, channels: int, windows: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.readers = nn.ModuleList([nn.Conv2d(4, channels, window, padding="same") for window in windows])

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        first, second = self.readers
        result: Tensor = first(y) + second(torch.relu(self.norm(y)))
        return result


@st.composite
def layers(draw: st.DrawFn, channels: int) -> tuple[nn.Module, int, int]:
    """A layer that keeps or halves the rows, its channels, and its stride."""
    kind = draw(st.sampled_from(["conv", "conv", "residual", "two", "max", "wide max", "avg", "activation"]))
    if kind == "conv":
        out, stride = draw(st.integers(1, 9)), draw(st.sampled_from([1, 1, 2]))
        kernel = draw(st.tuples(*[st.sampled_from([1, 3, 5])] * 2))
        dilation = draw(st.sampled_from([1, 1, 2])) if stride == 1 else 1
        padding = (dilation * (kernel[0] // 2), dilation * (kernel[1] // 2))
        return nn.Conv2d(channels, out, kernel, stride, padding, dilation), out, stride
    if kind == "two":
        windows = [draw(st.sampled_from(WINDOWS)) for _ in range(2)]
        return TwoReaders(channels, windows), channels, 1
    if kind == "residual":
        out, stride = draw(st.sampled_from([channels, 6])), draw(st.sampled_from([1, 2]))
        activation = draw(st.sampled_from(sorted(ACTIVATIONS)))
        return Residual(channels, out, stride, before=draw(st.booleans()), activation=activation), out, stride
    if kind == "activation":
        return (
            nn.Sequential(nn.BatchNorm2d(channels), ACTIVATIONS[draw(st.sampled_from(sorted(ACTIVATIONS)))]()),
            channels,
            1,
        )
    pools = {"max": nn.MaxPool2d(2), "wide max": nn.MaxPool2d(3, 2, 1), "avg": nn.AvgPool2d(2)}
    return pools[kind], channels, 2


@st.composite
def networks(draw: st.DrawFn, slices: int) -> tuple[nn.Module, Tensor]:
    """Layers, then the mean of the image, with an image that has rows enough for all."""
    seed = draw(st.integers(0, 1 << 20))
    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    channels = start = draw(st.integers(1, 4))
    strides = 1
    for _ in range(draw(st.integers(1, 5))):
        module, channels, stride = draw(layers(channels))
        modules.append(module)
        strides *= stride
    width = draw(st.sampled_from([8 * strides, 16 * strides, 24 * strides, draw(st.integers(strides, 40))]))
    x = torch.randn(draw(st.integers(1, 3)), start, slices * strides * draw(st.integers(1, 5)), width)
    model = nn.Sequential(*modules, Head(channels, (1, 1), draw(st.sampled_from(["mean", "pool"])))).eval()
    sparsify(model, draw(st.sampled_from([0.1, 0.4, 1.0])), torch.Generator().manual_seed(seed))
    return model, x


def sliced(model: nn.Module, x: Tensor, lanes: int, slices: int) -> Schedule | None:
    return slice_schedule(fuse(capture(model, x[:1])), lanes, slices)


def runner_of(plan: Plan, slices: int, *, own_kernels: bool = False) -> NativeRunner:
    library = load_library(lanes=plan.lanes)
    if own_kernels:
        plan, kernels = specialize(plan)
        library = specialized_library(library, kernels)
    return NativeRunner(library, plan, threads=slices)


def run(runner: NativeRunner, x: Tensor, outputs: int) -> Tensor:
    y = torch.full((len(x), outputs), torch.nan)
    runner.run(x, y)
    return y


def check(runner: NativeRunner, model: nn.Module, x: Tensor) -> None:
    """Cells that were never written are NaN, so that reading them shows."""
    with torch.no_grad():
        expected = model(x)
    run(runner, x, expected.shape[1])
    runner._sessions._idle[0].arenas[:] = 0xFF
    for _ in range(3):
        y = run(runner, x, expected.shape[1])
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()) + 1e-7)


def drawn_plan(data: st.DataObject, model: nn.Module, x: Tensor, lanes: int, slices: int) -> Plan:
    steps = sliced(model, x, lanes, slices)
    assume(steps is not None)  # else pixels would have to move between lanes, and with them rows that others have
    offers = [candidates(problem_of(step, lanes)) for step in conv_steps(steps)]
    return lower(steps, [data.draw(st.sampled_from(offer)) for offer in offers])


@settings(max_examples=25, deadline=None)
@given(data=st.data(), slices=st.integers(2, 4), lanes=st.sampled_from([4, 8]))
def test_slices_compute_the_same_as_torch(data: st.DataObject, slices: int, lanes: int) -> None:
    model, x = data.draw(networks(slices))
    plan = drawn_plan(data, model, x, min(lanes, load_library().lanes), slices)
    check(runner_of(plan, slices), model, x)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data(), slices=st.integers(2, 4))
def test_slices_on_specialized_kernels(data: st.DataObject, slices: int) -> None:
    model, x = data.draw(networks(slices))
    plan = drawn_plan(data, model, x, min(8, load_library().lanes), slices)
    check(runner_of(plan, slices, own_kernels=True), model, x)


@pytest.mark.parametrize("windows", [((1, 3), (5, 5)), ((3, 1), (1, 3)), ((5, 5), (1, 3)), ((3, 3), (3, 3))])
def test_a_halo_of_columns_only_needs_no_halo_buffer(windows: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """The kernel writes such a halo itself; the rows of the other image still have to be sent."""
    torch.manual_seed(0)
    model, x = nn.Sequential(TwoReaders(3, windows), Head(3, (1, 1), "mean")).eval(), torch.randn(2, 3, 16, 16)
    steps = sliced(model, x, min(8, load_library().lanes), 2)
    assert steps is not None
    wide = [
        next(tile for tile in candidates(problem_of(step, steps.lanes)) if tile.cols == region_of(step)[1])
        for step in conv_steps(steps)
    ]
    check(runner_of(lower(steps, wide), 2, own_kernels=True), model, x)


@pytest.mark.parametrize("name", ["resnet8", pytest.param("resnet20", marks=pytest.mark.slow), "wrn16-1", "vgg16"])
@pytest.mark.parametrize("slices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_built_in_networks_on_specialized_kernels(name: str, slices: int) -> None:
    model, x = build(name, classes=10, size=32).eval(), torch.randn(2, 3, 32, 32)
    sparsify(model, 0.2, torch.Generator().manual_seed(0))
    steps = sliced(model, x, min(8, load_library().lanes), slices)
    if name == "vgg16":  # its last images have a single row
        assert steps is None
        return
    assert steps is not None
    with torch.no_grad():
        expected = model(x)
    runner = runner_of(lower(steps), slices, own_kernels=True)
    first = run(runner, x, 10)
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-5)
    for _ in range(100):  # races would show
        assert torch.equal(run(runner, x, 10), first)


TASKS = Path("/proc/self/task")


def running_threads() -> int:
    """The threads of this process."""
    return len(list(TASKS.iterdir()))


@pytest.mark.skipif(not TASKS.exists(), reason="needs /proc to count threads")
@pytest.mark.parametrize("threads", [2, 4])
def test_batches_are_split_by_images_and_the_rest_by_rows(threads: int) -> None:
    model = build("resnet8", classes=10, size=32).eval()
    compiled = regrow.compile(model, torch.randn(1, 3, 32, 32), threads=threads, tune=False)
    before = running_threads()
    for batch in (1, 2, 3, 5, 7, 0, 1):
        x = torch.randn(batch, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert running_threads() == before  # one pool for all
    wide = load_library().lanes == 16  # too wide for images of 8 x 8 pixels
    assert isinstance(compiled._runner, RowsRunner) is not wide


def test_a_plan_for_slices_needs_as_many_threads() -> None:
    model, x = build("resnet8", classes=10, size=32).eval(), torch.randn(1, 3, 32, 32)
    steps = sliced(model, x, min(8, load_library().lanes), 4)
    assert steps is not None
    with pytest.raises(ValueError, match="4 slices needs as many threads, got 2"):
        NativeRunner(load_library(lanes=steps.lanes), lower(steps), threads=2)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 256, 3)),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Flatten()),
    ],
    ids=["fewer rows", "no mean", "an image", "windows of many sizes"],
)
def test_networks_that_cannot_be_split_by_rows_are_still_right(model: nn.Module) -> None:
    x = torch.randn(1, 3, 16, 16)
    assert sliced(model.eval(), x, 8, 2) is None
    graph = fuse(capture(model, x))
    y = torch.empty(1, *graph.output.shape)
    native_runner(graph, load_library(), threads=2).run(x, y)
    with torch.no_grad():
        torch.testing.assert_close(y, model(x), rtol=1e-5, atol=1e-5)


def test_rows_that_do_not_divide_evenly_are_not_split() -> None:
    model, x = build("resnet8", classes=10, size=32).eval(), torch.randn(1, 3, 32, 32)
    assert sliced(model, x, 8, 3) is None
    assert sliced(model, x, 8, 16) is None


def test_images_too_narrow_for_the_vectors_are_not_split() -> None:
    model, x = build("resnet8", classes=10, size=32).eval(), torch.randn(1, 3, 32, 32)
    assert [sliced(model, x, lanes, 2) is None for lanes in (4, 8, 16)] == [False, False, True]


def test_slices_of_one_pixel_are_not_made() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), Head(3, (1, 1), "mean")).eval()
    assert sliced(model, torch.randn(1, 3, 2, 1), 4, 2) is None


def test_windows_that_reach_beyond_the_neighboring_slices_prevent_a_split() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 3, 5, padding=2), Head(3, (1, 1), "mean")).eval()
    assert sliced(model, torch.randn(1, 1, 8, 8), 8, 4) is not None
    assert sliced(model, torch.randn(1, 1, 4, 8), 8, 4) is None
