"""Random architectures for property tests: everything ordinary networks do to channels, in random order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

ACTIVATIONS = (nn.ReLU, nn.SiLU, nn.Sigmoid, nn.Identity)


class Residual(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += self.shortcut(x)
        return F.relu(out, inplace=True)


class Concat(nn.Module):
    def __init__(self, *bodies: nn.Module) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, *(body(x) for body in self.bodies)], dim=1)


class Gate(nn.Module):
    """Squeeze and excitation, as it is often written."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(channels, 3), nn.Linear(3, channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, _, _ = x.size()
        scale = self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1).view(batch, channels))))
        return x * torch.sigmoid(scale).view(batch, channels, 1, 1)


class Halves(nn.Module):
    """Works on one half of the channels and hands the other one on."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels - (channels + 1) // 2, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        return torch.cat((first, self.conv(second)), 1)


class Widen(nn.Module):
    """The parameter-free shortcut of the first residual networks: every other pixel, zeros for new channels."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2))


class Head(nn.Module):
    def __init__(self, channels: int, size: int, *, pooled: bool) -> None:
        super().__init__()
        self.pooled = pooled
        self.hidden = nn.Linear(channels if pooled else channels * size * size, 6)
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean((2, 3)) if self.pooled else x.view(x.size(0), -1)
        return self.out(torch.relu(self.norm(self.hidden(x))))


class Builder:
    """Draws layers one after the other and keeps track of the shape."""

    def __init__(self, draw: st.DrawFn, channels: int, size: int) -> None:
        self.draw, self.channels, self.size = draw, channels, size
        self.layers: list[nn.Module] = []

    def one_of(self, *choices: object) -> object:
        return self.draw(st.sampled_from(choices))

    def finish(self, channels: int | None = None) -> None:
        """An optional norm, and an activation."""
        self.channels = channels or self.channels
        if self.one_of(True, True, False):
            self.layers.append(nn.BatchNorm2d(self.channels))
        self.layers.append(self.one_of(*ACTIVATIONS)())

    def conv(self, *, keep_size: bool = False, outputs: int | None = None) -> None:
        kernel, padding, stride = self.one_of((1, 0, 1), (3, 1, 1), (3, 0, 1), (5, 2, 1), (3, 1, 2), (1, 1, 1))
        if keep_size or self.size < 5:
            kernel, padding, stride = self.one_of((3, 1, 1), (1, 0, 1))
        outputs = outputs or self.draw(st.integers(2, 9))
        groups = self.one_of(*(g for g in range(1, 5) if self.channels % g == 0 and outputs % g == 0))
        mode = self.one_of("zeros", "zeros", "replicate")
        self.layers.append(
            nn.Conv2d(
                *(self.channels, outputs, kernel, stride, padding),
                groups=groups,
                bias=self.one_of(True, False),
                padding_mode=mode,
            )
        )
        self.size = (self.size + 2 * padding - kernel) // stride + 1
        self.finish(outputs)

    def depthwise(self) -> None:
        outputs = self.channels * self.one_of(1, 1, 2)
        self.layers.append(nn.Conv2d(self.channels, outputs, 3, padding=1, groups=self.channels, bias=False))
        self.finish(outputs)

    def pool(self) -> None:
        if self.size < 4:
            return
        self.layers.append(
            self.one_of(
                nn.MaxPool2d(3, 2, 1),
                nn.AvgPool2d(3, 2, 1),
                nn.AvgPool2d(3, 2, 1, count_include_pad=False),
                nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
            )
        )
        ceil = getattr(self.layers[-1], "ceil_mode", False)
        self.size = (self.size - 1 + ceil) // 2 + 1 if ceil else (self.size - 1) // 2 + 1

    def residual(self) -> None:
        inner = Builder(self.draw, self.channels, self.size)
        inner.conv(keep_size=True)
        inner.conv(keep_size=True, outputs=self.channels)
        self.layers.append(Residual(nn.Sequential(*inner.layers), nn.Identity()))

    def projection(self) -> None:
        outputs = self.draw(st.integers(2, 9))
        inner = Builder(self.draw, self.channels, self.size)
        inner.conv(keep_size=True, outputs=outputs)
        shortcut = nn.Sequential(nn.Conv2d(self.channels, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.layers.append(Residual(nn.Sequential(*inner.layers), shortcut))
        self.channels = outputs

    def widen(self) -> None:
        body = nn.Conv2d(self.channels, self.channels + 3, 3, stride=2, padding=1, bias=False)
        self.layers.append(Residual(nn.Sequential(body, nn.BatchNorm2d(self.channels + 3)), Widen()))
        self.channels, self.size = self.channels + 3, (self.size + 1) // 2

    def concat(self) -> None:
        inner = [Builder(self.draw, self.channels, self.size) for _ in range(self.one_of(1, 2))]
        for branch in inner:
            branch.conv(keep_size=True)
        self.layers.append(Concat(*(nn.Sequential(*branch.layers) for branch in inner)))
        self.channels += sum(branch.channels for branch in inner)
        self.finish()

    def transposed(self) -> None:
        outputs = self.draw(st.integers(2, 6))
        self.layers.append(nn.ConvTranspose2d(self.channels, outputs, 3, padding=1))
        self.finish(outputs)

    def gate(self) -> None:
        self.layers.append(Gate(self.channels))

    def halves(self) -> None:
        self.layers.append(Halves(self.channels))
        self.channels = (self.channels + 1) // 2 + 5


MOVES = (
    "conv",
    "conv",
    "depthwise",
    "pool",
    "residual",
    "projection",
    "widen",
    "concat",
    "transposed",
    "gate",
    "halves",
)


@st.composite
def networks(draw: st.DrawFn) -> nn.Module:
    """A small convolutional network in double precision, with batch norms as training leaves them."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    builder = Builder(draw, 3, 9)
    builder.conv()
    for move in draw(st.lists(st.sampled_from(MOVES), min_size=1, max_size=5)):
        getattr(builder, move)()
    layers = [*builder.layers, Head(builder.channels, builder.size, pooled=draw(st.booleans()))]
    return train_like(nn.Sequential(*layers)).double().eval()


def train_like(model: nn.Module) -> nn.Module:
    """Batch-norm statistics, scales and shifts, and biases, as far from their start as training takes them."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.3)
            nn.init.normal_(module.bias, 0.0, 0.5)
            nn.init.normal_(module.running_mean, 0.0, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
        elif getattr(module, "bias", None) is not None:
            nn.init.normal_(module.bias, 0.0, 0.5)
    return model


def prune_filters(model: nn.Module, sparsity: float, *, seed: int = 0) -> nn.Module:
    """Zeroes a fraction of every convolution's and hidden linear layer's filters, leaving biases and norms alone."""
    generator = torch.Generator().manual_seed(seed)
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for layer in layers[:-1]:
            layer.weight[torch.rand(len(layer.weight), generator=generator) < sparsity] = 0
    return model


def prune_weights(model: nn.Module, sparsity: float, *, seed: int = 0) -> nn.Module:
    """Zeroes a fraction of all weights of convolutions and linear layers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear | nn.ConvTranspose2d):
                module.weight[torch.rand(module.weight.shape, generator=generator) < sparsity] = 0
    return model
