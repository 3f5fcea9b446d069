"""Networks that hypothesis draws for the tests of the engine: odd sizes, every operation, any density."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "relu6": nn.ReLU6,
    "hardtanh": lambda: nn.Hardtanh(-0.7, 0.9),
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU("tanh"),
}


def sparsify(model: nn.Module, density: float, generator: torch.Generator) -> None:
    """Zero weights at random, and give the batch norms something to do."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= torch.rand(parameter.shape, generator=generator) < density
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(0, 0.5, generator=generator)
            module.running_mean.normal_(0, 0.5, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)


class Residual(nn.Module):
    """`act(bn(conv(x)) + shortcut(x))`, or with the batch norm and activation first."""

    def __init__(self, channels: int, out: int, stride: int, *, before: bool, activation: str) -> None:
        super().__init__()
        self.before = before
        self.norm = nn.BatchNorm2d(channels if before else out)
        self.conv = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        plain = stride == 1 and channels == out
        self.shortcut = nn.Identity() if plain else nn.Conv2d(channels, out, 1, stride, bias=False)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            y = F.relu(self.norm(x))
            return self.second(F.relu(self.conv(y))) + self.shortcut(y)
        return self.activation(self.norm(self.second(F.relu(self.conv(x)))) + self.shortcut(x))


class Excite(nn.Module):
    """Squeeze-and-excitation: a product with one number per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool, self.down, self.up = nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 3, 1), nn.Conv2d(3, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(self.pool(x)))))


class Dense(nn.Module):
    """A layer of a DenseNet, and the input again: channels are joined, and one of the parts is used elsewhere."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, growth, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(F.relu(self.norm(x)))
        return torch.cat([x, y, 2 * y + 0.25], 1)


class Head(nn.Module):
    """From an image to features, in one of the usual ways."""

    def __init__(self, channels: int, size: tuple[int, int], kind: str) -> None:
        super().__init__()
        self.kind = kind
        features = channels * size[0] * size[1] if kind == "flatten" else channels
        self.hidden, self.norm, self.last = nn.Linear(features, 19), nn.BatchNorm1d(19), nn.Linear(19, 7, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "mean":
            x = x.mean((2, 3))
        elif self.kind == "pool":
            x = F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1)
        return self.last(F.dropout(F.relu(self.norm(self.hidden(x.flatten(1)))), training=self.training))


def conv_out(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@st.composite
def conv_layers(draw: st.DrawFn, channels: int, size: tuple[int, int]) -> tuple[list[nn.Module], int]:
    """A convolution of any kind that fits, perhaps with batch norm, and an activation."""
    groups = draw(st.sampled_from([g for g in (1, 1, 1, 2, 3, channels) if channels % g == 0]))
    out = groups * draw(st.integers(1, 6))
    kernel, stride = (draw(st.tuples(st.integers(1, most), st.integers(1, most))) for most in (5, 3))
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]))
    sides = list(zip(size, kernel, stride, padding, dilation, strict=True))
    if any(conv_out(*side) < 1 for side in sides) or any(p > k // 2 + 1 for _, k, _, p, _ in sides):
        kernel, stride, padding, dilation = (3, 3), (1, 1), (1, 1), (1, 1)
    bias = draw(st.booleans())
    layers: list[nn.Module] = [nn.Conv2d(channels, out, kernel, stride, padding, dilation, groups, bias=bias)]
    if draw(st.booleans()):
        layers.append(nn.BatchNorm2d(out))
    layers.append(ACTIVATIONS[draw(st.sampled_from(sorted(ACTIVATIONS)))]())
    return layers, out


@st.composite
def pools(draw: st.DrawFn, size: tuple[int, int]) -> nn.Module:
    kernel, stride = draw(st.integers(1, min(3, *size))), draw(st.integers(1, 3))
    padding, ceil = draw(st.integers(0, kernel // 2)), draw(st.booleans())
    if draw(st.booleans()):
        return nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
    return nn.AvgPool2d(kernel, stride, padding, ceil_mode=ceil, count_include_pad=draw(st.booleans()))


@st.composite
def upsamples(draw: st.DrawFn) -> nn.Module:
    mode = draw(st.sampled_from(["nearest", "bilinear"]))
    corners = draw(st.booleans()) if mode == "bilinear" else None
    if draw(st.booleans()):
        size = draw(st.tuples(st.integers(1, 25), st.integers(1, 25)))
        return nn.Upsample(size, mode=mode, align_corners=corners)
    scale = draw(st.tuples(*[st.sampled_from([1.0, 1.3, 2.0, 2.5, 3.0])] * 2))
    return nn.Upsample(scale_factor=scale, mode=mode, align_corners=corners)


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A network in evaluation mode and a batch for it."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    channels, size = draw(st.integers(1, 5)), (draw(st.integers(1, 21)), draw(st.integers(1, 21)))
    x = torch.randn(draw(st.integers(1, 4)), channels, *size, generator=generator)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 4))):
        with torch.no_grad():
            _, channels, *shape = nn.Sequential(*layers).eval()(x).shape
        kind = draw(st.sampled_from(["conv", "conv", "conv", "residual", "pool", "excite", "dense", "upsample"]))
        if kind == "conv":
            layers += draw(conv_layers(channels, (shape[0], shape[1])))[0]
        elif kind == "residual":
            out = draw(st.sampled_from([channels, channels + 2]))
            options = {"before": draw(st.booleans()), "activation": draw(st.sampled_from(sorted(ACTIVATIONS)))}
            layers.append(Residual(channels, out, draw(st.integers(1, 2)), **options))
        elif kind == "pool":
            layers.append(draw(pools((shape[0], shape[1]))))
        elif kind == "upsample":
            layers.append(draw(upsamples()))
        elif kind == "excite":
            layers.append(Excite(channels))
        else:
            layers.append(Dense(channels, draw(st.integers(1, 4))))
    with torch.no_grad():
        _, channels, *shape = nn.Sequential(*layers).eval()(x).shape
    head = draw(st.sampled_from(["none", "mean", "pool", "flatten"]))
    if head != "none":
        layers.append(Head(channels, (shape[0], shape[1]), head))
    model = nn.Sequential(*layers).eval()
    sparsify(model, draw(st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0])), generator)
    return model, x
