"""A network that trains in seconds on 8x8 digits: for demos, tests and first experiments."""

import torch.nn.functional as F
from torch import Tensor, nn

from regrow.models.base import Network, initialize


class SmallCNN(Network):
    """Three 3x3 convolutions of width w, 2w and 4w with batch norm and ReLU; 2x2 max-pools between them.

    It has no shortcuts, so the effect of pruning a layer is easy to see. With one input channel and w = 16 it has
    23,184 conv weights.
    """

    def __init__(self, *, classes: int = 10, channels: int = 1, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.fc = nn.Linear(4 * width, classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.relu(self.bn3(self.conv3(x)))
        return self.classify(x)
