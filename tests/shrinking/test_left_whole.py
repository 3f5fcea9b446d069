"""Structures that shrink leaves as they are: it says which layers, and why."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import regrow

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Same(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride)


class Standardized(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(16, 3, 2, 2))

    def forward(self, x):
        return F.conv2d(x, self.kernel)


def pruned(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[::2] = 0
    return model.eval()


@pytest.mark.parametrize(
    ("model", "names", "reason"),
    [
        (nn.Sequential(Same(3, 16, 2), nn.ReLU(), Same(16, 16, 2)), ["0", "2"], "Same overrides forward"),
        (nn.Sequential(Standardized(3, 16, 2)), ["0"], "Standardized overrides forward"),
        (nn.Sequential(Functional(), nn.ReLU(), nn.Conv2d(16, 4, 1)), ["0.kernel"], "passed to a function"),
        (nn.Sequential(Same(3, 8, 2), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)), ["0"], "Same overrides forward"),
        (
            nn.Sequential(nn.Conv2d(3, 16, 2), nn.ConstantPad2d(1, 0.5), nn.Conv2d(16, 4, 2)),
            ["0"],
            r"'1' pads it with 0\.5",
        ),
    ],
    ids=["own forward", "standardized", "functional", "among others", "padded"],
)
def test_a_layer_that_keeps_its_pruned_filters_is_named(model, names, reason):
    model = pruned(model)
    with torch.no_grad():
        if type(model[-1]) is nn.Conv2d:
            model[-1].weight.normal_()
    with pytest.warns(UserWarning, match=f"shrink left pruned filters in .*{reason}"):
        small = regrow.shrink(model, X)
    report = regrow.shrink_report(small)
    assert list(report.unsupported) == names
    assert all(f"{layer.outputs[0] // 2} (" in str(report) for layer in report.layers if layer.name in names)
    with torch.no_grad():
        torch.testing.assert_close(small(X), model(X))


def test_a_parametrized_layer_is_named():
    model = nn.Sequential(nn.Conv2d(3, 16, 2), nn.ReLU(), nn.Conv2d(16, 4, 2)).eval()
    with torch.no_grad():
        model[0].weight[::2], model[0].bias[::2] = 0, 0
        parametrizations.spectral_norm(model[0]).eval()
    with pytest.warns(UserWarning, match="shrink left pruned filters in 1 layer: 0: "):
        regrow.shrink(model, X)


def test_a_border_of_average_pooling_is_named_as_well():
    model = nn.Sequential(nn.Conv2d(3, 16, 2), nn.AvgPool2d(3, padding=1), nn.Conv2d(16, 4, 2)).eval()
    with torch.no_grad():
        model[0].weight[::2] = 0  # the biases are constants other than zero
    with pytest.warns(UserWarning, match="'1' pads it with 0"):
        regrow.shrink(model, X)


def test_layers_without_pruned_filters_and_zero_padding_of_zeros_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regrow.shrink(nn.Sequential(Same(3, 16, 2), nn.ReLU(), Same(16, 16, 2)).eval(), X)
        model = pruned(nn.Sequential(nn.Conv2d(3, 16, 2), nn.ConstantPad2d(1, 0.0), nn.Conv2d(16, 4, 2)))
        model[-1].weight.data.normal_()
        small = regrow.shrink(model, X)
    assert small.get_submodule("0").out_channels == 8


def test_a_warning_about_many_layers_names_three_of_each_reason():
    model = pruned(nn.Sequential(*(Same(16 if number else 3, 16, 2) for number in range(6))))
    with pytest.warns(UserWarning, match="in 6 layers: 0, 1, 2 and 3 more: Same overrides forward$"):
        regrow.shrink(model, X)


def test_the_error_of_a_tracer_is_not_cut_within_a_word():
    class Model(nn.Module):
        def forward(self, x):
            if isinstance(x, torch.fx.Proxy):
                raise ValueError("a " + "long " * 60 + "reason")
            return x

    with pytest.warns(UserWarning, match=r"ValueError: a (long )+…$"):
        regrow.shrink(Model(), X)
