"""Wide residual networks (Zagoruyko & Komodakis 2016): few pre-activated blocks, many channels."""

import torch.nn.functional as F
from torch import Tensor, nn

from regrow.models.architecture import Network
from regrow.models.initialization import initialize


class PreActivationBlock(nn.Module):
    """Batch norm and ReLU before each of two 3x3 convolutions.

    Where the shape changes, the shortcut is a bare 1x1 convolution of the *activated* input, as in the
    authors' code.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = None
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        activated = F.relu(self.bn1(x))
        branch: Tensor = self.conv2(F.relu(self.bn2(self.conv1(activated))))
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(activated)
        return shortcut + branch


def _stage(blocks: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    first = PreActivationBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(PreActivationBlock(outputs, outputs, 1) for _ in range(blocks - 1)))


class WideResNet(Network):
    """WRN-d-k: d = 6n+4 layers, and k times the width of a CIFAR ResNet in all three stages; no dropout."""

    def __init__(self, depth: int, widen: int, *, classes: int = 10, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"a WideResNet has depth 6n+4 (10, 16, 22, 28, 34, 40, …), got {depth}.")
        blocks, wide = (depth - 4) // 6, width * widen
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.layer1 = _stage(blocks, width, wide, 1)
        self.layer2 = _stage(blocks, wide, 2 * wide, 2)
        self.layer3 = _stage(blocks, 2 * wide, 4 * wide, 2)
        self.bn = nn.BatchNorm2d(4 * wide)
        self.fc = nn.Linear(4 * wide, classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        x = F.relu(self.bn(x))
        return self.classify(x)
