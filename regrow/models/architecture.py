"""What every network shares: it remembers how it was built, and it ends in one linear layer."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

Option = bool | int | float | str


@dataclass(frozen=True)
class Architecture:
    """The name and every option of a network, as plain values that JSON can hold.

    `regrow.models.build(architecture.name, **architecture.options)` gives the same structure with fresh
    weights, so files and run folders need no pickled code.
    """

    name: str
    options: Mapping[str, Option]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one input."""
        size = int(self.options["size"])
        return int(self.options["channels"]), size, size


class Network(nn.Module):
    """A classifier of images whose last layer is `fc`; `regrow.models.build` sets `architecture`."""

    architecture: Architecture
    fc: nn.Linear

    def classify(self, features: Tensor) -> Tensor:
        """Average the feature maps over their positions and return the logits."""
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return logits
