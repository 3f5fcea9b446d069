"""Residual networks (He et al. 2016) for CIFAR and ImageNet, and wide ones (Zagoruyko & Komodakis 2016)."""

from collections.abc import Mapping
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from regrow.models.base import Network, initialize


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the identity if shapes agree, otherwise a 1x1 convolution with batch norm (option B of the paper)."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        branch = F.relu(self.bn1(self.conv1(x)))
        branch = self.bn2(self.conv2(branch))
        return F.relu(branch + self.downsample(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut.

    The stride is in the 3x3 convolution, as in the widely used Torch and torchvision versions; in He et al.
    it is in the first 1x1. The parameters are the same.
    """

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        branch = F.relu(self.bn1(self.conv1(x)))
        branch = F.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        return F.relu(branch + self.downsample(x))


_Block = type["BasicBlock | Bottleneck | PreActivationBlock"]


def _stage(block: _Block, blocks: int, inputs: int, width: int, stride: int) -> nn.Sequential:
    outputs = width * block.expansion
    first = block(inputs, width, stride)
    return nn.Sequential(first, *(block(outputs, width, 1) for _ in range(blocks - 1)))


class CifarResNet(Network):
    """ResNet for small images (Sec. 4.2): a 3x3 stem and three stages of n basic blocks, width w, 2w and 4w.

    Shortcuts between stages are projections, as the MAC counts of the DPF paper imply, not the zero-padding
    of option A.
    """

    def __init__(
        self, depth: int, *, classes: int = 10, channels: int = 3, width: int = 16, stem_stride: int = 1
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"a CIFAR ResNet has depth 6n+2 (8, 14, 20, 26, 32, …), got {depth}.")
        blocks = (depth - 2) // 6
        self.conv1 = _conv(channels, width, 3, stem_stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(BasicBlock, blocks, width, width, 1)
        self.layer2 = _stage(BasicBlock, blocks, width, 2 * width, 2)
        self.layer3 = _stage(BasicBlock, blocks, 2 * width, 4 * width, 2)
        self.fc = nn.Linear(4 * width, classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.classify(x)


_IMAGENET_STAGES: Mapping[int, tuple[_Block, tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}

IMAGENET_DEPTHS = tuple(_IMAGENET_STAGES)


class ImageNetResNet(Network):
    """ResNet for large images (Table 1): a 7x7 stem, a max-pool and four stages.

    Parameters are named as in torchvision, so its checkpoints load.
    """

    def __init__(self, depth: int, *, classes: int = 1000, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        if depth not in _IMAGENET_STAGES:
            raise ValueError(f"an ImageNet ResNet has depth 18, 34, 50, 101 or 152, got {depth}.")
        block, (one, two, three, four) = _IMAGENET_STAGES[depth]
        wide = width * block.expansion
        self.conv1 = _conv(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(block, one, width, width, 1)
        self.layer2 = _stage(block, two, wide, 2 * width, 2)
        self.layer3 = _stage(block, three, 2 * wide, 4 * width, 2)
        self.layer4 = _stage(block, four, 4 * wide, 8 * width, 2)
        self.fc = nn.Linear(8 * wide, classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.classify(x)


class PreActivationBlock(nn.Module):
    """Batch norm and ReLU before each of two 3x3 convolutions.

    If the shape changes, the shortcut is a 1x1 convolution (without batch norm) of the *activated* input, as in the
    authors' code.
    """

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs, 3)
        self.shortcut = None
        if inputs != outputs or stride != 1:
            self.shortcut = _conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        activated = F.relu(self.bn1(x))
        branch: Tensor = self.conv2(F.relu(self.bn2(self.conv1(activated))))
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(activated)
        return shortcut + branch


class WideResNet(Network):
    """WRN-d-k (Zagoruyko & Komodakis 2016): d = 6n+4 layers, three stages k times as wide as a CIFAR ResNet's.

    Without dropout.
    """

    def __init__(self, depth: int, widen: int, *, classes: int = 10, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"a WideResNet has depth 6n+4 (10, 16, 22, 28, 34, 40, …), got {depth}.")
        blocks, wide = (depth - 4) // 6, width * widen
        self.conv1 = _conv(channels, width, 3)
        self.layer1 = _stage(PreActivationBlock, blocks, width, wide, 1)
        self.layer2 = _stage(PreActivationBlock, blocks, wide, 2 * wide, 2)
        self.layer3 = _stage(PreActivationBlock, blocks, 2 * wide, 4 * wide, 2)
        self.bn = nn.BatchNorm2d(4 * wide)
        self.fc = nn.Linear(4 * wide, classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        x = F.relu(self.bn(x))
        return self.classify(x)
