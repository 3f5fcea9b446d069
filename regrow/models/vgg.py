"""Networks without shortcuts: VGG-16 (Simonyan & Zisserman 2015, configuration D), and a small one for demos."""

import torch.nn.functional as F
from torch import Tensor, nn

from regrow.models.base import Network, initialize

# Per stage: how many 3x3 convolutions, and how many times the base width.
_STAGES = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))


class VGG16(Network):
    """Thirteen 3x3 convolutions with batch norm, a max-pool after each stage, and one classifier.

    The two hidden linear layers of 4096 units, made for 224 pixels, are left out, as is usual on CIFAR.
    """

    def __init__(self, *, classes: int = 10, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for convolutions, factor in _STAGES:
            for _ in range(convolutions):
                outputs = width * factor
                # The batch norm after it would cancel a bias.
                layers += [
                    nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(),
                ]
                inputs = outputs
            # Rounding up makes no difference at 32 pixels, and allows 8 and 28 pixels with five pools.
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(inputs, classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        return self.classify(self.features(x))


class VGG16D(VGG16):
    """VGG-16 as in the pruning literature: two hidden linear layers of 8w units before the classifier.

    SNIP, Sparse Momentum and the code of DPF's authors train this network (15.25 M parameters). It has batch norm in
    place of the dropout of the original.
    """

    def __init__(self, *, classes: int = 10, channels: int = 3, width: int = 64) -> None:
        super().__init__(classes=classes, channels=channels, width=width)
        units = self.fc.in_features
        del self.fc  # it comes after the hidden layers: the last linear layer is a dense one by default
        hidden = [[nn.Linear(units, units), nn.ReLU(), nn.BatchNorm1d(units)] for _ in range(2)]
        self.hidden = nn.Sequential(*(module for layer in hidden for module in layer))
        self.fc = nn.Linear(units, classes)
        initialize(self.hidden)
        initialize(self.fc)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        features = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        logits: Tensor = self.fc(self.hidden(features))
        return logits


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
