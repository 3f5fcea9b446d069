"""A projection becomes part of the convolution that it is added to, where that is possible and pays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regrow.engine.codegen.build import load_library, specialized_library
from regrow.engine.codegen.specialize import specialize
from regrow.engine.codegen.structs import ThreadMode
from regrow.engine.compiler import steps_of
from regrow.engine.frontend import fuse as fusing
from regrow.engine.frontend.fuse import fuse, join_shortcuts
from regrow.engine.frontend.graph import Graph
from regrow.engine.frontend.torch_export import capture
from regrow.engine.ops.conv import Conv, ConvStep
from regrow.engine.plan import split
from regrow.engine.plan.lower import lower
from regrow.engine.runtime.model import TorchRunner
from regrow.engine.runtime.session import NativeRunner
from tests.engine.networks import sparsify
from tests.engine.test_engine import LANES, check, relative_error


class Bottleneck(nn.Module):
    """A block as ResNet-50 has it, with something before it and after it; subclasses make exceptions."""

    def __init__(self, channels: int = 4, out: int = 12, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.narrow = nn.Conv2d(channels, channels, 1)
        self.window = nn.Conv2d(channels, channels, 3, stride, 1)
        self.wide = nn.Conv2d(channels, out, 1)
        self.project = nn.Conv2d(channels, out, 1, stride, groups=groups)
        self.head = nn.Conv2d(out, 2, 1)

    def before(self, x: Tensor) -> Tensor:
        return F.relu(self.stem(x))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        y = self.wide(F.relu(self.window(F.relu(self.narrow(x)))))
        return self.head(F.relu(self.add(x, y)))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return y + self.project(x)


def graph_of(model: nn.Module, size: tuple[int, int] = (9, 7)) -> tuple[Graph, Tensor]:
    x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    return fuse(capture(model.eval(), x)), x


def convolutions(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes if isinstance(node, Conv)]


class ProjectedFirst(Bottleneck):
    """The other order of the same sum."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        shortcut = self.project(x)
        return self.head(F.relu(self.wide(F.relu(self.window(F.relu(self.narrow(x))))) + shortcut))


def run(runner: NativeRunner, x: Tensor, like: Tensor) -> Tensor:
    y = torch.full_like(like, float("nan"))
    runner.run(x, y)
    return y


@pytest.mark.parametrize("lanes", LANES)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    block=st.sampled_from([Bottleneck, ProjectedFirst]),
    channels=st.integers(1, 9),
    out=st.integers(1, 20),
    stride=st.integers(1, 3),
    size=st.tuples(st.integers(4, 33), st.integers(4, 33)),
    density=st.floats(0, 1),
    bands=st.booleans(),
    threads=st.integers(1, 3),
)
def test_joined_blocks_compute_the_same_as_torch(
    lanes: int,
    block: type[Bottleneck],
    channels: int,
    out: int,
    stride: int,
    size: tuple[int, int],
    density: float,
    bands: bool,
    threads: int,
) -> None:
    torch.manual_seed(0)
    model = block(channels, out, stride).eval()
    sparsify(model, density, torch.Generator().manual_seed(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusing, "LARGE_SUM", 0)
        if bands:
            patch.setattr(split, "LARGE_CHAIN", 0)
            patch.setattr(split, "BAND", 1)
        graph, x = graph_of(model, size)
        joined = join_shortcuts(graph)
        assert len(convolutions(joined)) == len(convolutions(graph)) - 1
        expected = model(x).detach()
        assert relative_error(TorchRunner(joined)(x), expected) < 1e-5
        plan = lower(steps_of(graph, lanes), threads=threads)
        runner = NativeRunner(load_library(lanes=lanes), plan, threads=threads, mode=ThreadMode.PER_LAYER)
        assert relative_error(run(runner, x, expected), expected) < 1e-5


@pytest.mark.parametrize("stride", [1, 2])
def test_specialized_kernels_compute_a_joined_block_bit_for_bit(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "LARGE_SUM", 0)
    torch.manual_seed(0)
    model = Bottleneck(stride=stride).eval()
    graph, x = graph_of(model, (32, 32))
    library = load_library()
    plan = lower(steps_of(graph, library.lanes))
    own_plan, kernels = specialize(plan)
    like = model(x).detach()
    own = run(NativeRunner(specialized_library(library, kernels), own_plan), x, like)
    assert torch.equal(own, run(NativeRunner(library, plan), x, like))


@pytest.mark.parametrize("size", [32, 28, 30])
@pytest.mark.parametrize("stride", [1, 2])
def test_joining_copies_nothing_and_keeps_bands(stride: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "LARGE_SUM", 0)
    monkeypatch.setattr(split, "LARGE_CHAIN", 0)
    graph, _ = graph_of(Bottleneck(stride=stride), (size, size))
    steps = steps_of(graph, 8).steps
    assert not any(step.kernel.name == "pointwise" for step in steps)
    followers = {step.node.name: step.followers for step in steps if isinstance(step, ConvStep)}
    assert followers["window"] == 2  # the joined one, and the head


def test_small_sums_are_not_joined() -> None:
    graph, _ = graph_of(Bottleneck())
    assert convolutions(join_shortcuts(graph)) == convolutions(graph)
    graph, _ = graph_of(Bottleneck(out=64), (48, 48))
    assert "wide + project" in convolutions(join_shortcuts(graph))


class TwoReaders(Bottleneck):
    def add(self, x: Tensor, y: Tensor) -> Tensor:
        shortcut = self.project(x)
        return (y + shortcut) * shortcut


class Activated(Bottleneck):
    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return y + F.relu(self.project(x))


class FromTheInput(Bottleneck):
    """What the caller gives is not in planes, and has to be copied into them anyway if it is thinned."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__(channels=3, stride=stride)

    def before(self, x: Tensor) -> Tensor:
        return x


class SameInput(Bottleneck):
    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self.wide(x) + self.project(x)


class Concatenated(Bottleneck):
    """Its input already has a place."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        y = self.wide(F.relu(self.window(F.relu(self.narrow(x)))))
        z = F.relu(y + self.project(x))
        return torch.cat([self.head(z), x], 1)


@pytest.mark.parametrize(
    "make",
    [TwoReaders, Activated, FromTheInput, SameInput, Concatenated, lambda: Bottleneck(groups=2)],
    ids=["two readers", "activated", "from the input", "same input", "concatenated", "groups"],
)
def test_other_sums_are_not_joined(make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "LARGE_SUM", 0)
    torch.manual_seed(0)
    model = make()
    graph, x = graph_of(model)
    assert convolutions(join_shortcuts(graph)) == convolutions(graph)
    check(model, x, LANES[-1])


def test_strided_pixels_of_the_input_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "LARGE_SUM", 0)
    torch.manual_seed(0)
    model = FromTheInput(stride=2)
    graph, x = graph_of(model)
    assert "wide + project" in convolutions(join_shortcuts(graph))
    for lanes in LANES:
        check(model, x, lanes)


def test_consecutive_blocks_are_all_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "LARGE_SUM", 0)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Bottleneck(stride=2), Bottleneck(stride=2)
            self.first.head = nn.Conv2d(12, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    torch.manual_seed(0)
    model = Two().eval()
    graph, x = graph_of(model, (21, 18))
    names = convolutions(join_shortcuts(graph))
    assert [name for name in names if "+" in name] == [
        "first.wide + first.project",
        "second.wide + second.project",
    ]
    for lanes in LANES:
        check(model, x, lanes)
