"""Weights that are computed in the forward pass, several inputs, and errors that do not print tensors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import regrow
from regrow.analysis.costs import account
from regrow.export import onnx


class Standardized(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, (self.weight - self.weight.mean()) / self.weight.std(), self.bias)


class Normalized(nn.Conv2d):
    def forward(self, x):
        weight = F.batch_norm(self.weight.reshape(1, 8, -1), None, None, training=True).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias)


@pytest.mark.parametrize(
    "conv", [nn.Conv2d, Standardized, Normalized, lambda *sizes: parametrizations.weight_norm(nn.Conv2d(*sizes))]
)
def test_a_convolution_whose_weight_is_computed_has_the_macs_of_any_other(conv):
    found = account(nn.Sequential(conv(3, 8, 3), nn.BatchNorm2d(8)), (3, 8, 8))
    assert found.conv_macs == 8 * 3 * 3 * 3 * 6 * 6
    assert found.norm_macs == 2 * 8 * 6 * 6


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Embedding(7, 5)

    def forward(self, x, tokens):
        return self.a(x) + self.b(tokens)


INPUTS = torch.randn(1, 4), torch.zeros(1, dtype=torch.long)


def test_a_model_with_two_inputs_is_counted():
    assert account(Two(), INPUTS).macs == 20


def test_errors_name_the_shapes_of_tensors_and_not_their_values(tmp_path):
    many = (torch.randn(300, 300), "text")
    for attempt in (
        lambda: account(Two(), many),
        lambda: regrow.compile(Two(), many),
        lambda: regrow.compile(Two(), {"x": many[0]}),
        lambda: onnx(Two(), many, tmp_path / "net.onnx"),
    ):
        with pytest.raises(
            TypeError, match=r"(a tuple of a tensor of shape \(300, 300\), 'text'|a dict with \['x'\])"
        ) as e:
            attempt()
        assert len(str(e.value)) < 250
