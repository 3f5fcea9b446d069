"""Densely connected networks (Huang et al. 2017), the DenseNet-BC form for CIFAR."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regrow.models.base import Network, initialize


class DenseLayer(nn.Module):
    """A 1x1 bottleneck to 4k channels and a 3x3 convolution to k, appended to the input (the "B" of BC)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Append k new channels."""
        new = self.conv1(F.relu(self.bn1(x)))
        new = self.conv2(F.relu(self.bn2(new)))
        return torch.cat((x, new), 1)


class Transition(nn.Module):
    """Halves the channels (the "C" of BC, compression 0.5) and the resolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compress and downsample."""
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNet(Network):
    """DenseNet-BC: three blocks of (depth - 4) / 6 layers that each add `growth` channels."""

    def __init__(self, depth: int, *, classes: int = 10, channels: int = 3, growth: int = 12) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"a DenseNet-BC has depth 6n+4 (10, 16, 22, …, 40, 100), got {depth}.")
        layers = (depth - 4) // 6
        width = 2 * growth
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        for index in range(3):
            if index:
                blocks.append(Transition(width, width // 2))
                width //= 2
            blocks.append(nn.Sequential(*(DenseLayer(width + i * growth, growth) for i in range(layers))))
            width += layers * growth
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        x = F.relu(self.bn(self.blocks(self.conv1(x))))
        return self.classify(x)
