"""The compiled model computes what the module computes, whatever the network, the batch and the vectors."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import regrow
from regrow.core.modules import disagreement, exact_outputs
from regrow.engine.codegen.build import load_library
from regrow.engine.compiler import native_runner, steps_of
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.torch_export import UnsupportedOperationError, capture
from regrow.engine.ops.conv import Conv, ConvStep
from regrow.engine.ops.pointwise import Affine
from regrow.engine.plan import split
from regrow.engine.runtime.model import TorchRunner
from regrow.models import build
from tests.engine.networks import networks, sparsify

LANES = [lanes for lanes in (4, 8, 16) if lanes <= load_library().lanes]


def relative_error(y: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest output; exact zeros may be off by rounding."""
    return float((y - expected).abs().max() / expected.abs().max().clamp(min=1e-3))


def check(model: nn.Module, x: Tensor, lanes: int) -> None:
    with torch.no_grad():
        expected = model(x)
    graph = fuse(capture(model, x))
    check_result(TorchRunner(graph)(x), model, x, expected)
    runner = native_runner(graph, load_library(lanes=lanes))
    y = torch.full_like(expected, float("nan"))
    runner.run(x, y)
    check_result(y, model, x, expected)


def check_result(y: Tensor, model: nn.Module, x: Tensor, expected: Tensor) -> None:
    """Accept what `regrow.compile` accepts: where terms cancel, torch's own rounding is larger than 1e-5."""
    different = relative_error(y, expected) >= 1e-5 and disagreement(
        y, expected, lambda: exact_outputs(model, (x,)).get(0), 1e-5
    )
    assert not different


@pytest.mark.parametrize("lanes", LANES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(drawn=networks())
def test_any_network_computes_the_same_as_torch(lanes: int, drawn: tuple[nn.Module, Tensor]) -> None:
    check(*drawn, lanes)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", LANES)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(drawn=networks())
def test_very_many_networks_compute_the_same_as_torch(lanes: int, drawn: tuple[nn.Module, Tensor]) -> None:
    check(*drawn, lanes)


@pytest.mark.slow
@pytest.mark.skipif(load_library().lanes == 16, reason="the machine's own vectors are tested as all others are")
@pytest.mark.parametrize("name", ["resnet20", "wrn28-2", "vgg16", "densenet40", "resnet50"])
def test_vectors_wider_than_those_of_the_machine_compute_the_same_as_torch(name: str) -> None:
    """Layouts and plans of AVX-512, with kernels that do everything by halves."""
    torch.manual_seed(0)
    size = 64 if name == "resnet50" else 32
    model = build(name, size=size).eval()
    sparsify(model, 0.1, torch.Generator().manual_seed(0))
    check(model, torch.randn(2, 3, size, size), 16)


@pytest.mark.parametrize("name", ["resnet20", "wrn28-2", "vgg16", "densenet40", "small", "resnet50"])
def test_built_in_networks_compute_the_same_as_torch(name: str) -> None:
    torch.manual_seed(0)
    size = 64 if name == "resnet50" else 32
    model = build(name, size=size).eval()
    sparsify(model, 0.1, torch.Generator().manual_seed(0))
    x = torch.randn(2, 3, size, size)
    compiled = regrow.compile(model, x, tune=False)
    with torch.no_grad():
        assert relative_error(compiled(x), model(x)) < 1e-5


class Bottlenecks(nn.Module):
    """Convolutions that run in bands: 1 x 1 after another one, with residual sums of their inputs and outputs."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.narrow, self.window = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, kernel, stride, kernel // 2)
        self.wide, self.shortcut, self.again = nn.Conv2d(6, 9, 1), nn.Conv2d(3, 9, 1, stride), nn.Conv2d(9, 6, 1)
        self.same, self.last = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.wide(F.relu(self.window(self.narrow(x)))) + self.shortcut(x))
        y = self.again(y) + self.last(self.again(y))
        return self.same(F.relu(self.last(self.same(y)) + y))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("band", [1, 1000, 9000])
def test_convolutions_in_bands_compute_the_same_as_torch(
    lanes: int, band: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "LARGE_CHAIN", 0)
    monkeypatch.setattr(split, "BAND", band)
    torch.manual_seed(0)
    for kernel, stride, size in ((3, 1, (13, 21)), (1, 1, (16, 16)), (3, 2, (23, 9)), (5, 1, (8, 31))):
        model, x = Bottlenecks(kernel, stride).eval(), torch.randn(2, 3, *size)
        sparsify(model, 0.5, torch.Generator().manual_seed(1))
        steps = steps_of(fuse(capture(model, x)), lanes).steps
        assert any(isinstance(step, ConvStep) and step.followers for step in steps)
        check(model, x, lanes)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_windows_that_all_reach_over_the_edge_count_only_the_pixels_inside(size: int) -> None:
    pool = nn.AvgPool2d(2, 2, padding=1, count_include_pad=False)
    for lanes in LANES:
        check(nn.Sequential(nn.Conv2d(1, 1, 1), pool).eval(), torch.randn(1, 1, size, size), lanes)


def test_perceptrons_work_at_every_density() -> None:
    torch.manual_seed(0)
    for density in (0.0, 0.05, 0.4, 1.0):
        model = nn.Sequential(nn.Linear(37, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 3)).eval()
        sparsify(model, density, torch.Generator().manual_seed(0))
        x = torch.randn(5, 37)
        with torch.no_grad():
            assert relative_error(regrow.compile(model, x, tune=False)(x), model(x)) < 1e-5


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_every_batch_size_works_after_compiling_for_one() -> None:
    model = Small().eval()
    compiled = regrow.compile(model, torch.randn(1, 3, 9, 9), tune=False)
    for images in (0, 1, 2, 7, 33):
        x = torch.randn(images, 3, 9, 9)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_numpy_arrays_come_back_as_numpy_arrays() -> None:
    model = Small().eval()
    compiled = regrow.compile(model, torch.randn(1, 3, 9, 9), tune=False)
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)
    y = compiled(x)
    assert isinstance(y, np.ndarray)
    assert y.dtype == np.float32
    with torch.no_grad():
        np.testing.assert_allclose(y, model(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)


def test_arrays_in_any_order_and_type_are_converted() -> None:
    model = Small().eval()
    compiled = regrow.compile(model, torch.randn(1, 3, 9, 9), tune=False)
    x = torch.randn(2, 3, 9, 9)
    for same in (x.double(), x.to(memory_format=torch.channels_last), x.flip(0).flip(0), x.requires_grad_()):
        torch.testing.assert_close(compiled(same), compiled(x.detach()))
    assert not compiled(x).requires_grad


def test_compiling_leaves_the_model_as_it_was() -> None:
    model = Small().train()
    model.norm.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    regrow.compile(model, torch.randn(2, 3, 9, 9), tune=False)
    assert model.training
    assert not model.norm.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_later_changes_of_the_module_do_not_affect_a_compiled_model() -> None:
    model = Small().eval()
    x = torch.randn(1, 3, 9, 9)
    compiled = regrow.compile(model, x, tune=False)
    y = compiled(x)
    model.conv.weight.data.zero_()
    assert torch.equal(compiled(x), y)


def test_fusing_leaves_one_node_per_convolution() -> None:
    graph = fuse(capture(build("wrn28-2").eval(), torch.randn(1, 3, 32, 32)))
    assert sum(isinstance(node, Conv) for node in graph.nodes) == 28
    assert not any(isinstance(node, Affine) for node in graph.nodes)


def test_wrong_shapes_are_refused_with_the_right_one() -> None:
    compiled = regrow.compile(Small().eval(), torch.randn(1, 3, 9, 9), tune=False)
    with pytest.raises(ValueError, match=r"\(3, 9, 9\).*\(1, 3, 8, 9\)"):
        compiled(torch.randn(1, 3, 8, 9))


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, 1)


def test_unsupported_operations_are_named_with_the_module_they_come_from() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Attention())
    with pytest.raises(UnsupportedOperationError, match=r"softmax.*'1' \(Attention\).*conv2d"):
        regrow.compile(model, torch.randn(1, 3, 8, 8))


def test_two_outputs_are_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + 1, x + 2

    with pytest.raises(UnsupportedOperationError, match="one tensor"):
        regrow.compile(Two(), torch.randn(1, 3, 8, 8))


def test_a_model_that_decides_by_its_input_is_refused() -> None:
    class Deciding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedOperationError, match="Deciding chooses its operations by the values of a tensor"):
        regrow.compile(Deciding(), torch.randn(1, 3, 8, 8), tune=False)


def test_the_repr_of_a_compiled_model_shows_its_shapes() -> None:
    compiled = regrow.compile(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval(), torch.ones(1, 3, 2, 2), tune=False)
    assert repr(compiled) == "CompiledModel((3, 2, 2) -> (4,))"


def test_without_a_compiler_torch_runs_the_model_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path))  # where no compiler has built anything
    model, x = Small().eval(), torch.randn(2, 3, 9, 9)
    with pytest.warns(RuntimeWarning, match="needs a C compiler"):
        compiled = regrow.compile(model, x)
    assert not compiled.native
    assert compiled.profile(repeat=2).macs > 0
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.warns(RuntimeWarning, match="could not build"):
        regrow.compile(Small().eval(), torch.randn(2, 3, 9, 9))


def test_the_profile_lists_every_layer_with_its_work() -> None:
    model = Small().eval()
    model.conv.weight.data[:, 0] = 0
    profile = regrow.compile(model, torch.randn(1, 3, 9, 9), tune=False).profile(repeat=3)
    layers = {layer.name: layer for layer in profile.layers if layer.macs}
    assert layers["conv"].macs == 8 * 2 * 9 * 81
    assert layers["last"].macs == 32
    assert all(layer.seconds < 1 for layer in profile.layers)
    assert "GMAC/s" in str(profile)


def test_nothing_is_written_to_the_console() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regrow.compile(Small().eval(), torch.randn(1, 3, 9, 9), tune=False)
