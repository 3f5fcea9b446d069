"""Checks that a copy of a model has its outputs: rounding is accepted, anything else is not, however small."""

import pytest
import torch
from torch import nn

import regrow
from regrow.core.modules import disagreement, distance, exact_outputs
from regrow.export import c, onnx

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Sly(nn.Module):
    """Returns small outputs, and zeros while it is traced."""

    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.scale = nn.Conv2d(3, 4, 3), scale

    def forward(self, x):
        y = self.conv(x) * self.scale
        traced = isinstance(x, torch.fx.Proxy) or torch.compiler.is_exporting()
        return y * 0 if traced else y


@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e-12])
def test_zeros_are_not_accepted_in_place_of_small_outputs(tmp_path, scale):
    model = Sly(scale).eval()
    with pytest.warns(UserWarning, match=r"shrink did not change the model: the shrunk model's outputs differ by"):
        assert torch.equal(regrow.shrink(model, X)(X), model(X))
    with pytest.raises(RuntimeError, match=r"differs from the module by 1\.0e\+00"):
        regrow.compile(model, X, tune=False)
    with pytest.raises(RuntimeError, match=r"differs from the module by 1\.0e\+00"):
        c(model, X, tmp_path / "net.c")


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_zeros_are_not_accepted_in_place_of_small_outputs_in_onnx(tmp_path, scale):
    pytest.importorskip("onnxruntime")
    with pytest.raises(RuntimeError, match=r"ONNX Runtime differs from torch by .* the file was not written"):
        onnx(Sly(scale).eval(), X, tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


class Canceling(nn.Module):
    """Loses three digits in float32: torch's own error is above the tolerance of compiled models."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.0)
        self.second.running_mean.fill_(2e4)
        self.first.bias.data.fill_(2e4)

    def forward(self, x):
        return self.second(self.first(x))


def test_rounding_errors_of_torch_are_accepted(tmp_path):
    model = Canceling().eval()
    exact = exact_outputs(model, (X,))[0]
    with torch.no_grad():
        assert distance(model(X).double(), exact) > 3e-4
    compiled = regrow.compile(model, X, tune=False)
    assert distance(compiled(X).double(), exact) < 1e-2
    assert c(model, X, tmp_path / "net.c").error > 1e-4
    if pytest.importorskip("onnxruntime"):
        onnx(model, X, tmp_path / "net.onnx")
    assert regrow.shrink_report(regrow.shrink(model, X)).failed == ""


def test_ten_times_the_error_of_torch_is_accepted_and_more_is_not():
    exact = torch.linspace(-1, 1, 9, dtype=torch.float64)
    expected = (exact + 1e-3).float()
    for difference, accepted in ((9e-3, True), (-9e-3, True), (1.1e-2, False), (torch.nan, False), (torch.inf, False)):
        result = (expected.double() + difference).float()
        assert (disagreement(result, expected, lambda: exact, 1e-4) is None) is accepted
        assert disagreement(result, expected, lambda: None, 1e-4) is not None
    assert disagreement(expected[:3], expected, lambda: exact, 1e-4) is not None


def test_zeros_are_refused_even_if_torch_has_a_large_error():
    exact = torch.linspace(-1, 1, 9, dtype=torch.float64)
    expected = (exact + 0.5).float()
    assert disagreement(torch.zeros(9), expected, lambda: exact, 1e-4) is not None


def test_a_model_that_cannot_run_in_float64_is_compared_in_float32():
    class Fixed(nn.Linear):
        def forward(self, x):
            return super().forward(x.float())

    assert exact_outputs(Fixed(3, 4), (torch.randn(2, 3),)) == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_precision_that_onnx_runtime_lacks_is_named(tmp_path, dtype):
    pytest.importorskip("onnxruntime")
    with pytest.raises(RuntimeError, match=rf"lacks some operations in {dtype}: export model\.float\(\)"):
        onnx(nn.Conv2d(3, 4, 3).to(dtype).eval(), X.to(dtype), tmp_path / "net.onnx")
