"""Every operation computes what torch computes, and is registered once, in one place."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regrow
from regrow.engine.codegen.build import load_library
from regrow.engine.compiler import native_runner
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.graph import Graph, Value
from regrow.engine.frontend.torch_export import UnsupportedOperationError, capture
from regrow.engine.ops.activations import FUNCTIONS, Activation
from regrow.engine.ops.base import kernels, lowerings, lowers, operation
from regrow.engine.ops.pointwise import Affine
from regrow.engine.ops.reshape import Input
from tests.engine.test_engine import LANES, check


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations_are_accurate_everywhere(name: str, lanes: int) -> None:
    edges = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 100.0, -100.0, 1e20, torch.inf])
    x = torch.cat([torch.linspace(-12, 12, 4001), edges])[None]
    values = Value("x", (x.numel(),)), Value("y", (x.numel(),))
    activation = Activation(name, -0.5, 2.0)
    graph = Graph((Input("x", values[0]), Affine("y", values[1], values[0], activation=activation)), values[1])
    y = torch.empty_like(x)
    native_runner(graph, load_library(lanes=lanes)).run(x, y)
    expected = activation(x.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6)
    assert bool((y >= 0).all()) or not FUNCTIONS[name].never_negative


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations_keep_nan(name: str) -> None:
    module = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), Applied(name)).eval()
    module[0].weight.data.fill_(1.0)
    compiled = regrow.compile(module, torch.randn(1, 1, 4, 4), tune=False)
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 1, 2] = torch.nan
    assert torch.equal(compiled(x).isnan(), module(x).isnan())


class Applied(nn.Module):
    """An activation function by its name in the engine."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.activation = Activation(name, -0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


class Decoder(nn.Module):
    """Part of a U-Net: upsampled channels beside those of an earlier layer, read by windows of 3 x 3."""

    def __init__(self, upsample: nn.Module) -> None:
        super().__init__()
        self.encode, self.down = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 4, 3, 2, 1)
        self.upsample, self.decode = upsample, nn.Conv2d(9, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.encode(x))
        y = self.upsample(F.gelu(self.down(x), approximate="tanh"))
        return self.decode(torch.cat([x, y], 1))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(
    "upsample",
    [
        nn.Upsample(scale_factor=2),
        nn.Upsample((14, 20), mode="nearest"),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Upsample((14, 20), mode="bilinear", align_corners=True),
    ],
    ids=str,
)
def test_a_decoder_computes_the_same_as_torch(upsample: nn.Module, lanes: int) -> None:
    torch.manual_seed(0)
    check(Decoder(upsample).eval(), torch.randn(2, 2, 14, 20), lanes)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("size", [(1, 1), (3, 50), (7, 5), (31, 2)])
def test_images_of_any_size_are_resized(mode: str, size: tuple[int, int]) -> None:
    for corners in (False, True) if mode == "bilinear" else (None,):
        module = nn.Sequential(nn.Upsample(size, mode=mode, align_corners=corners), nn.ReLU())
        check(module.eval(), torch.randn(2, 3, 7, 9), LANES[-1])


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("scale", [(1.0, 1.0), (1.0, 1.3), (2.2, 2.5), (1.3, 2.0), (0.5, 3.0)])
def test_scale_factors_are_rounded_as_torch_does(mode: str, scale: tuple[float, float]) -> None:
    for size in ((2, 2), (2, 7), (5, 3)):
        module = nn.Sequential(nn.Upsample(scale_factor=scale, mode=mode), nn.ReLU())
        check(module.eval(), torch.randn(1, 2, *size), LANES[-1])


def test_infinite_pixels_outside_of_a_bilinear_window_do_not_matter() -> None:
    module = nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(1, 1, 3, padding=1)).eval()
    compiled = regrow.compile(module, torch.randn(1, 1, 6, 6), tune=False)
    x = torch.zeros(1, 1, 6, 6)
    x[0, 0, 0, 0] = torch.inf
    assert torch.equal(compiled(x).isfinite(), module(x).isfinite())


def test_every_kernel_is_in_the_c_file_of_its_operation() -> None:
    for kernel in kernels():
        assert re.search(rf"^LOCAL void run_{kernel.name}\(", kernel.source.read_text(), re.M), kernel
        assert issubclass(kernel.structure, ctypes.Structure)


def test_errors_list_the_registered_operations() -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        capture(nn.Sequential(nn.Softmax(1)), torch.randn(1, 3))
    assert str(caught.value).endswith(f"The engine can run {', '.join(lowerings())}.")
    assert {"gelu", "upsample_nearest2d", "upsample_bilinear2d"} <= lowerings().keys()


def test_an_operation_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="'relu' is lowered twice"):
        lowers("relu")(lambda call: None)
    with pytest.raises(ValueError, match="two kernels 'conv'"):
        operation()(type("Conv", (), {"struct": {}, "__module__": __name__}))


def test_activations_are_fused_into_convolutions() -> None:
    graph = fuse(capture(nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU()).eval(), torch.randn(1, 1, 8, 8)))
    assert [type(node).__name__ for node in graph.nodes] == ["Input", "Conv"]
