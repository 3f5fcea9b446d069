"""VGG-16 (Simonyan & Zisserman 2015, configuration D) as used on CIFAR: batch norm, one linear layer."""

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
