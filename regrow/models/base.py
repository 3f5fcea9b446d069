"""Base class of all networks, their architecture as plain values, and their initialization."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

Option = bool | int | float | str


@dataclass(frozen=True)
class Architecture:
    """The name and all options of a network, as plain values that JSON can store.

    `regrow.models.build(architecture.name, **architecture.options)` builds the same network with new weights, so
    files and run folders need no pickled code.
    """

    name: str
    options: Mapping[str, Option]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one input."""
        size = int(self.options["size"])
        return int(self.options["channels"]), size, size


class Network(nn.Module):
    """Base class of image classifiers whose last layer is `fc`; `regrow.models.build` sets `architecture`."""

    architecture: Architecture
    fc: nn.Linear

    def classify(self, features: Tensor) -> Tensor:
        """Average the feature maps over their positions and return the logits."""
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return logits


def initialize(network: nn.Module) -> None:
    """Initialize the weights of `network` as the papers and their authors' code do.

    Convolutions are normal with variance 2 / fan-out (He et al. 2015, Eq. 14, the backward form). The ResNet
    and DenseNet papers refer to He et al. without saying which form; the authors' Torch code of ResNet,
    WideResNet and DenseNet divides by `k*k*C_out`, which is the fan-out. VGG (Simonyan & Zisserman 2015) used
    a fixed 0.01 and staged training, which batch norm made unnecessary: it uses the same rule here. Linear
    weights keep torch's default (uniform within 1/sqrt(fan-in)), as in the authors' code; biases start at
    zero and batch-norm scales at one.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
